//! What a text orders, if it is a command. Pure.

/// A command.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Command {
    /// No model and no tool is used any more.
    Stop,
    /// Ends [`Command::Stop`].
    Start,
    /// How the agent is.
    Status,
    /// The conversation begins anew.
    New,
    /// Ends the runs of the conversation, or the one whose id begins so.
    Cancel(Option<String>),
    /// The last runs.
    Runs,
    /// Soul, skills and lists are read anew.
    Refresh,
    /// The list of commands.
    Help,
    /// One that is to come.
    NotBuilt,
    /// One with words after it that it does not take.
    Surplus(&'static str),
    /// A word that is no command.
    Unknown,
}

/// The commands that take no word, by their names.
const PLAIN: [(&str, Command); 9] = [
    ("start", Command::Start),
    ("status", Command::Status),
    ("new", Command::New),
    ("runs", Command::Runs),
    ("refresh", Command::Refresh),
    ("help", Command::Help),
    ("stop", Command::Stop),
    ("spend", Command::NotBuilt),
    ("undo", Command::NotBuilt),
];

impl Command {
    /// Reads a text. It is a command where it begins with a slash and one word of letters: a path such as `/etc/hosts` is
    /// none, nor is a slash that stands alone.
    ///
    /// Words behind a command that takes none make it no other command: whoever asks `/new what is the time?` shall not
    /// lose the question. `/stop` is obeyed whatever follows.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let text = text.trim().strip_prefix('/')?;
        let mut words = text.split_whitespace();
        let name = words.next()?;
        if text.starts_with(char::is_whitespace) || !name.bytes().all(|byte| byte.is_ascii_alphabetic()) {
            return None;
        }
        let name = name.to_ascii_lowercase();
        let (first, second) = (words.next(), words.next());
        if name == "cancel" {
            return Some(match (first, second) {
                (id, None) => Self::Cancel(id.map(str::to_owned)),
                _ => Self::Surplus("cancel"),
            });
        }
        let Some((name, command)) = PLAIN.into_iter().find(|(known, _)| *known == name) else {
            return Some(Self::Unknown);
        };
        let takes_all = matches!(command, Self::Stop | Self::NotBuilt);
        Some(if first.is_some() && !takes_all { Self::Surplus(name) } else { command })
    }

    /// Its name, for records: no word of the text.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            Self::Stop => "stop",
            Self::Start => "start",
            Self::Status => "status",
            Self::New => "new",
            Self::Cancel(_) => "cancel",
            Self::Runs => "runs",
            Self::Refresh => "refresh",
            Self::Help => "help",
            Self::NotBuilt => "not built",
            Self::Surplus(_) => "surplus words",
            Self::Unknown => "unknown",
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_slash_and_one_word_of_letters_is_a_command_and_nothing_else_is() {
        let texts = [
            "/stop",
            "/Stop",
            "  /stop\n",
            "/stop at once!",
            "/start",
            "/status",
            "/new",
            "/new what is the time?",
            "/cancel",
            "/cancel 0a1b2c3d",
            "/cancel 0a1b 2c3d",
            "/runs",
            "/refresh",
            "/help me",
            "/spend today",
            "/undo",
            "/foo",
            "/foo bar",
            "stop",
            "please /stop",
            "//stop",
            "/ stop",
            "/\nstop",
            "/",
            "",
            "/etc/hosts is a file",
            "/stop!",
            "/stop, please",
            "/r/nostr",
            "/2",
            "/über",
            "/a_b",
        ];
        let table: String = texts.map(|text| format!("{text:?} {:?}\n", Command::parse(text))).concat();
        insta::assert_snapshot!(table, @r#"
        "/stop" Some(Stop)
        "/Stop" Some(Stop)
        "  /stop\n" Some(Stop)
        "/stop at once!" Some(Stop)
        "/start" Some(Start)
        "/status" Some(Status)
        "/new" Some(New)
        "/new what is the time?" Some(Surplus("new"))
        "/cancel" Some(Cancel(None))
        "/cancel 0a1b2c3d" Some(Cancel(Some("0a1b2c3d")))
        "/cancel 0a1b 2c3d" Some(Surplus("cancel"))
        "/runs" Some(Runs)
        "/refresh" Some(Refresh)
        "/help me" Some(Surplus("help"))
        "/spend today" Some(NotBuilt)
        "/undo" Some(NotBuilt)
        "/foo" Some(Unknown)
        "/foo bar" Some(Unknown)
        "stop" None
        "please /stop" None
        "//stop" None
        "/ stop" None
        "/\nstop" None
        "/" None
        "" None
        "/etc/hosts is a file" None
        "/stop!" None
        "/stop, please" None
        "/r/nostr" None
        "/2" None
        "/über" None
        "/a_b" None
        "#);
    }

    proptest! {
        #[test]
        fn any_text_is_read_and_white_space_around_it_means_nothing(text in ".{0,40}") {
            prop_assert_eq!(Command::parse(&text), Command::parse(&format!(" \n{text}\t")));
            if Command::parse(&text).is_some() {
                prop_assert!(text.trim().starts_with('/'));
            }
        }
    }
}
