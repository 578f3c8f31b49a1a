//! The token estimate against real tokenizers: those of OpenAI's older models (cl100k) and newer ones (o200k).

use didactyl::context::tokens::estimate;
use serde_json::{Value, json};

const CODE: &str = r#"
    /// Whether nothing more is to be done.
    #[must_use]
    pub fn is_final(self) -> bool {
        matches!(self, Self::Done | Self::Dropped)
    }

    for (index, call) in calls.into_iter().enumerate() {
        let mut id = call.id;
        if id.is_empty() || used.contains(&id) {
            id = format!("call_{turn}_{index}");
        }
    }
"#;

const MARKDOWN: &str = "# Dido\n\nA *sovereign* agent: its keys, skills and memory are its own.\n\n\
    - answers encrypted messages (NIP-17, NIP-04)\n- runs skills on a schedule, e.g. `@daily`\n\n\
    | skill | trigger |\n| --- | --- |\n| digest | cron |\n\nSee [the docs](https://example.com/docs?page=2#skills).\n";

const TEXTS: [(&str, &str); 11] = [
    (
        "English",
        "A relay merely forwards messages, and anybody may run one. The weather was nice today, so we went for a walk in the park and had a coffee afterwards. Thanks for asking! I'll write you tomorrow.",
    ),
    (
        "German",
        "Kein Unternehmen kann das Konto sperren, denn der Schlüssel gehört allein dem Eigentümer. Heute ist schönes Wetter; wir gingen im Park spazieren und tranken danach Kaffee.",
    ),
    (
        "Vietnamese",
        "Trong mạng xã hội phi tập trung, người dùng sở hữu khóa và dữ liệu của chính mình. Hôm nay trời đẹp.",
    ),
    (
        "Russian",
        "Ретранслятор лишь пересылает сообщения, и запустить его может каждый. Сегодня хорошая погода, мы гуляли в парке.",
    ),
    ("Greek", "Ο χρήστης κατέχει ο ίδιος τα κλειδιά και τα δεδομένα του. Σήμερα ο καιρός είναι καλός."),
    ("Arabic", "لا تستطيع أي شركة إغلاق حسابك لأن المفتاح ملك لك وحدك. الطقس اليوم جميل وقد مشينا في الحديقة."),
    ("Hindi", "रिले केवल संदेश आगे भेजता है और उसे कोई भी चला सकता है। आज मौसम अच्छा है।"),
    (
        "Chinese",
        "没有任何公司可以封禁你的账号，因为你的密钥只属于你自己。今天天气很好，我们去公园散步。龘靐齉爩鱻麤。",
    ),
    (
        "Japanese",
        "リレーはメッセージを転送するだけで、誰でも運営できます。今日はとてもいい天気なので、公園を散歩しました。",
    ),
    (
        "Korean",
        "릴레이는 메시지를 전달할 뿐이며 누구나 운영할 수 있습니다. 오늘은 날씨가 좋아서 공원을 산책했습니다.",
    ),
    ("emoji", "😀🤙🔥🚀💜⚡️👩‍👧👍🏽🇩🇪❤️🧡🫂🥳✨🎉"),
];

/// The same bytes each time, that look like no words.
struct Noise(u64);

impl Noise {
    fn below(&mut self, end: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        usize::try_from(self.0 >> 33).unwrap() % end
    }

    fn text(&mut self, alphabet: &str, length: usize) -> String {
        let alphabet: Vec<char> = alphabet.chars().collect();
        (0..length).map(|_| alphabet[self.below(alphabet.len())]).collect()
    }

    fn hex(&mut self, length: usize) -> String {
        self.text("0123456789abcdef", length)
    }

    fn event(&mut self) -> Value {
        json!({"id": self.hex(64), "pubkey": self.hex(64), "created_at": 1_767_225_600 + self.below(9999), "kind": 1,
            "tags": [["e", self.hex(64), "wss://relay.example.com"], ["p", self.hex(64)]], "content": "gm nostr 🤙", "sig": self.hex(128)})
    }
}

fn samples() -> Vec<(&'static str, String)> {
    let mut noise = Noise(1);
    let mut samples: Vec<(&str, String)> = TEXTS.iter().map(|(name, text)| (*name, text.repeat(4))).collect();
    let many = |mut line: Box<dyn FnMut() -> String>| -> String { (0..40).map(|_| line() + "\n").collect() };
    samples.push(("Rust", CODE.repeat(3)));
    samples.push(("Markdown", MARKDOWN.repeat(3)));
    let events: Value = (0..10).map(|_| noise.event()).collect();
    samples.push(("events, as JSON", events.to_string()));
    samples.push((
        "events, as JSON in JSON",
        json!({"success": true, "content": events.to_string()}).to_string(),
    ));
    let short: Value = (0..99).map(|n| json!({"a": n, "b": [true, null], "c": "x", "d": {}})).collect();
    samples.push(("minified JSON", short.to_string()));
    let numbers: Value = (0..99).map(|_| json!(noise.below(1_000_000))).collect();
    samples.push(("numbers, as JSON", numbers.to_string()));
    let mut ids = Noise(2);
    samples.push(("hex ids", many(Box::new(move || ids.hex(64)))));
    let mut npubs = Noise(3);
    samples.push((
        "npubs",
        many(Box::new(move || format!("npub1{}", npubs.text("qpzry9x8gf2tvdw0s3jn54khce6mua7l", 58)))),
    ));
    let base64 = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    samples.push(("base64", Noise(4).text(base64, 2000)));
    samples.push(("punctuation", "!@#$%^&*()_+{}|:\"<>?-=[]\\;',./`~".repeat(20)));
    samples
}

/// The table of docs/PERFORMANCE.md.
#[test]
fn the_estimate_is_never_far_below_the_truth() {
    let older = tiktoken_rs::cl100k_base_singleton();
    let newer = tiktoken_rs::o200k_base_singleton();
    let (mut table, mut far_off) = (Vec::new(), Vec::new());
    for (name, text) in samples() {
        let truths = [older, newer].map(|tokenizer| tokenizer.encode_ordinary(&text).len());
        let estimated = estimate(&text);
        let percent = truths.map(|truth| estimated * 100 / truth);
        if !percent.iter().all(|percent| (95..=450).contains(percent)) {
            far_off.push(name);
        }
        table.push(format!("| {name} | {}% | {}% |", percent[0], percent[1]));
    }
    insta::assert_snapshot!(table.join("\n"), @r"
    | English | 124% | 127% |
    | German | 95% | 137% |
    | Vietnamese | 146% | 277% |
    | Russian | 115% | 178% |
    | Greek | 106% | 268% |
    | Arabic | 107% | 254% |
    | Hindi | 97% | 353% |
    | Chinese | 107% | 163% |
    | Japanese | 114% | 181% |
    | Korean | 104% | 222% |
    | emoji | 100% | 154% |
    | Rust | 132% | 132% |
    | Markdown | 125% | 125% |
    | events, as JSON | 119% | 118% |
    | events, as JSON in JSON | 123% | 123% |
    | minified JSON | 153% | 153% |
    | numbers, as JSON | 112% | 112% |
    | hex ids | 110% | 109% |
    | npubs | 100% | 103% |
    | base64 | 103% | 108% |
    | punctuation | 96% | 96% |
    ");
    assert_eq!(far_off, [""; 0]);
}

#[test]
fn dense_json_has_at_most_three_characters_a_token() {
    for (name, text) in samples().iter().filter(|(name, _)| name.contains("JSON")) {
        assert!(estimate(text) * 3 >= text.chars().count(), "{name}");
    }
}
