use std::collections::BTreeMap;

use super::*;
use crate::secret::Secret;

const BODY: &[u8] = br#"{"action":"opened","n":1}"#;
const SIGNED: &str = "sha256=c9e2e7837111f871372ff416361c325f1fd8a912bcb2fa76a2d6676929962654";
/// Of [`BODY`] at [`AT`] by `whsec_test_1`.
const V1: &str = "5b5df65a13a4b4f568e7a49a12c70ddbd4fb426824f0b137e4c854435afc3c85";
const AT: u64 = 1_803_902_400;
const TOKEN: &str = "a-token-of-the-ci-000001";

type Headers<'a> = &'a [(&'a str, &'a str)];

fn hook(form: Form, secrets: &[&str]) -> Hook {
    Hook { form, secrets: secrets.iter().map(|secret| Secret::new((*secret).to_owned())).collect() }
}

fn ask(hook: &Hook, headers: Headers<'_>, body: &[u8], now: u64) -> Result<Delivery, &'static str> {
    let headers: BTreeMap<&str, &str> = headers.iter().copied().collect();
    let call = Call { header: &|name| headers.get(name).copied(), body };
    authenticate(hook, &call, Timestamp::from(now))
}

fn github() -> Hook {
    hook(Form::Github, &["hook-secret-1"])
}

fn stripe() -> Hook {
    hook(Form::Stripe, &["whsec_test_1"])
}

fn sign(secret: &str, parts: &[&[u8]]) -> String {
    let mut mac = Hmac::<Sha256>::new_from_slice(secret.as_bytes()).unwrap();
    parts.iter().for_each(|part| mac.update(part));
    hex(&mac.finalize().into_bytes())
}

/// The hex of [`SIGNED`].
fn digits() -> &'static str {
    SIGNED.strip_prefix("sha256=").unwrap()
}

fn is_good(hook: &Hook, headers: Headers<'_>, body: &[u8], now: u64) -> bool {
    ask(hook, headers, body, now).is_ok()
}

#[test]
fn githubs_documented_example_and_each_spelling_of_a_right_signature_verify() {
    let documented = hook(Form::Github, &["It's a Secret to Everybody"]);
    let signature = "sha256=757107ea0eb2509fc211221cce984b8a37570b6d7586c22c46f4379c8b043e17";
    let headers = [("x-hub-signature-256", signature), ("x-github-delivery", "72d3162e-cc78")];
    let claim = Claim {
        mark: hex(&sha256(&unhex32(signature.strip_prefix("sha256=").unwrap()).unwrap())),
        lasts: SIGNATURE_CLAIM,
    };
    assert_eq!(
        ask(&documented, &headers, b"Hello, World!", 0),
        Ok(Delivery { id: "72d3162e-cc78".to_owned(), claim: Some(claim.clone()) })
    );
    // Without an id the signature is it.
    assert_eq!(
        ask(&documented, &headers[..1], b"Hello, World!", 0),
        Ok(Delivery { id: claim.mark.clone(), claim: Some(claim) })
    );
    let upper = digits().to_ascii_uppercase();
    for spelling in [SIGNED, &format!("sha256={upper}"), &format!(" {SIGNED} ")] {
        assert!(is_good(&github(), &[("x-hub-signature-256", spelling)], BODY, 0), "{spelling}");
    }
    let rotated = hook(Form::Github, &["another-secret-2", "hook-secret-1"]);
    assert!(is_good(&rotated, &[("x-hub-signature-256", SIGNED)], BODY, 0));
}

#[test]
fn a_header_of_stripes_documented_form_verifies_within_five_minutes_either_way() {
    // Several v1, and a v0, as Stripe's documentation shows.
    let zeros = "0".repeat(64);
    let header = format!("t={AT},v1={zeros},v1={V1},v0={zeros}");
    let mark = hex(&sha256(&[AT.to_string().as_bytes(), b".", BODY].concat()));
    for (now, is_fresh) in
        [(AT + 10, true), (AT + 299, true), (AT - 299, true), (AT + 301, false), (AT - 301, false)]
    {
        let expected = if is_fresh {
            Ok(Delivery { id: mark.clone(), claim: None })
        } else {
            Err("the time of its Stripe-Signature is not within five minutes of ours")
        };
        assert_eq!(ask(&stripe(), &[("stripe-signature", &header)], BODY, now), expected, "{now}");
    }
    // While secrets are changed there are two, and whoever sends one of them alone again sends no other delivery.
    let rotated = hook(Form::Stripe, &["whsec_of_tomorrow", "whsec_test_1"]);
    let tomorrows = sign("whsec_of_tomorrow", &[AT.to_string().as_bytes(), b".", BODY]);
    for header in [
        header,
        format!("t={AT},v1={V1},v1={tomorrows}"),
        format!("t={AT},v1={V1}"),
        format!("t={AT},v1={tomorrows}"),
    ] {
        let expected = Ok(Delivery { id: mark.clone(), claim: None });
        assert_eq!(ask(&rotated, &[("stripe-signature", &header)], BODY, AT), expected, "{header}");
    }
}

#[test]
fn a_delivery_of_stripe_is_its_event_and_no_header_makes_it_another() {
    let id = |body: &str| {
        let header = format!("t={AT},v1={}", sign("whsec_test_1", &[format!("{AT}.{body}").as_bytes()]));
        let headers = [("stripe-signature", header.as_str()), ("idempotency-key", "new")];
        ask(&stripe(), &headers, body.as_bytes(), AT).unwrap().id
    };
    assert_eq!(id(r#"{"object":"event","id":"evt_1"}"#), "evt_1");
    // What the event speaks of has an id too.
    for body in [r#"{"id":"in_1"}"#, r#"{"data":{"id":"evt_1"}}"#, r#"{"id":"evt_ 1"}"#, "[[[[", "evt_1"] {
        assert_eq!(id(body).len(), 64, "{body}");
    }
}

#[test]
fn a_bearers_delivery_is_its_key_or_its_body_for_ten_minutes() {
    let hook = hook(Form::Bearer, &["another-token-of-the-ci-2", TOKEN]);
    let authorization = format!("bearer {TOKEN}");
    let headers = [("authorization", authorization.as_str()), ("idempotency-key", "order 7")];
    let hashed = Delivery { id: hex(&sha256(b"order 7")), claim: None };
    assert_eq!(ask(&hook, &headers, BODY, 7), Ok(hashed));
    let mark = sign(TOKEN, &[BODY]);
    let claim = Some(Claim { mark: mark.clone(), lasts: BODY_CLAIM });
    assert_eq!(ask(&hook, &headers[..1], BODY, 7), Ok(Delivery { id: format!("{mark}@7"), claim }));
    for wrong in ["", "Bearer", "Bearer ", &format!("Basic {TOKEN}"), TOKEN, &format!("Bearer {TOKEN}1")] {
        assert!(!is_good(&hook, &[("authorization", wrong)], BODY, 7), "{wrong}");
    }
}

#[test]
fn no_forged_stale_or_relabelled_variant_verifies() {
    let (mut github_variants, mut stripe_variants) = (Vec::new(), Vec::new());
    let digits = digits();
    for at in 0..32 {
        let flip = |hex: &str| {
            let (before, after) = hex.split_at(at);
            let (digit, after) = after.split_at(1);
            format!("{before}{}{after}", if digit == "0" { "1" } else { "0" })
        };
        github_variants.push(format!("sha256={}", flip(digits)));
        stripe_variants.push(format!("t={AT},v1={}", flip(V1)));
    }
    let zeros = "0".repeat(64);
    github_variants.extend([
        format!("sha256={zeros}"),
        format!("sha1={digits}"),
        digits.to_owned(),
        format!("sha256={SIGNED}"),
        format!("SHA256={digits}"),
        format!("sha256= {digits}"),
        format!("{SIGNED},{SIGNED}"),
        format!("sha256={zeros},{SIGNED}"),
        format!("sha256={}", digits.split_at(62).0),
        format!("sha256={digits}00"),
        format!("sha256=+{}", digits.split_at(1).1),
        "sha256=".to_owned(),
        String::new(),
        format!("sha256={}", sign("another-secret", &[BODY])),
        format!("sha256={}", sign("", &[BODY])),
        format!("sha256={}", sign("hook-secret-1", &[])),
        format!("sha256={}", hex(&sha256(BODY))),
        format!("t={AT},v1={digits}"),
    ]);
    let over = |text: &str, secret: &str| sign(secret, &[text.as_bytes(), b".", BODY]);
    stripe_variants.extend([
        format!("v1={V1}"),
        format!("t=abc,v1={}", over("abc", "whsec_test_1")),
        format!("t=,v1={}", over("", "whsec_test_1")),
        format!("t=+{AT},v1={}", over(&format!("+{AT}"), "whsec_test_1")),
        format!("t=-{AT},v1={}", over(&format!("-{AT}"), "whsec_test_1")),
        format!("t={AT}0,v1={}", over(&format!("{AT}0"), "whsec_test_1")),
        format!("t=99999999999999999999,v1={}", over("99999999999999999999", "whsec_test_1")),
        format!("t={},v1={V1}", AT + 1),
        format!("t={AT},t={AT},v1={V1}"),
        format!("t={AT},t={},v1={V1}", AT + 1),
        format!("t={AT},v0={V1}"),
        format!("t={AT},v2={V1}"),
        format!("t={AT},v1=sha256={V1}"),
        format!("t={AT}"),
        format!("t={AT};v1={V1}"),
        format!("t={},v1={}", AT - 301, over(&(AT - 301).to_string(), "whsec_test_1")),
        format!("t={},v1={}", AT + 301, over(&(AT + 301).to_string(), "whsec_test_1")),
        format!("t={AT},v1={}", over(&AT.to_string(), "whsec_other_2")),
        format!("t={AT},v1={}", sign("whsec_test_1", &[BODY])),
        String::new(),
        V1.to_owned(),
        SIGNED.to_owned(),
    ]);
    for variant in &github_variants {
        assert!(!is_good(&github(), &[("x-hub-signature-256", variant)], BODY, AT), "{variant}");
    }
    for variant in &stripe_variants {
        assert!(!is_good(&stripe(), &[("stripe-signature", variant)], BODY, AT), "{variant}");
    }
    // The right value under another name, in another form, or of another body.
    let at_stripe = format!("t={AT},v1={V1}");
    let relabelled: [(&Hook, Headers<'_>, &[u8]); 9] = [
        (&github(), &[], BODY),
        (&github(), &[("x-hub-signature", SIGNED)], BODY),
        (&github(), &[("stripe-signature", SIGNED)], BODY),
        (&github(), &[("authorization", "Bearer hook-secret-1")], BODY),
        (&github(), &[("x-hub-signature-256", SIGNED)], br#"{"action":"opened","n":2}"#),
        (&github(), &[("x-hub-signature-256", SIGNED)], b""),
        (&stripe(), &[("x-hub-signature-256", &at_stripe)], BODY),
        (&stripe(), &[("authorization", "Bearer whsec_test_1")], BODY),
        (&stripe(), &[("stripe-signature", &at_stripe)], br#"{"action":"opened","n":1} "#),
    ];
    for (hook, headers, body) in relabelled {
        assert!(!is_good(hook, headers, body, AT), "{headers:?}");
    }
    assert!(is_good(&github(), &[("x-hub-signature-256", SIGNED)], BODY, AT));
    assert!(is_good(&stripe(), &[("stripe-signature", &at_stripe)], BODY, AT));
    assert!(github_variants.len() + stripe_variants.len() + relabelled.len() > 50);
}
