//! Server-sent events, as far as chat completions need them: bytes in, the payloads of `data:` lines out.
//!
//! Each `data:` line counts as an event of its own, since JSON has no raw line breaks and some servers forget the empty
//! line between two events. Comments, other fields and `[DONE]`'s meaning are left out or to the caller. See
//! <https://html.spec.whatwg.org/multipage/server-sent-events.html>.

/// Cuts a stream of bytes into lines, whatever pieces it comes in.
#[derive(Debug, Default)]
pub(super) struct Lines {
    /// The line that has not ended yet.
    rest: Vec<u8>,
}

impl Lines {
    /// The payloads of those lines that end in `bytes`.
    pub(super) fn push(&mut self, bytes: &[u8]) -> Vec<Vec<u8>> {
        let mut payloads = Vec::new();
        let mut pieces = bytes.split(|byte| *byte == b'\n');
        // What stands behind the last line break begins a new line.
        let rest = pieces.next_back().unwrap_or_default();
        for piece in pieces {
            let mut line = std::mem::take(&mut self.rest);
            line.extend_from_slice(piece);
            payloads.extend(payload(&line));
        }
        self.rest.extend_from_slice(rest);
        payloads
    }

    /// The payload of the last line, where the stream ended without a line break.
    pub(super) fn finish(&mut self) -> Option<Vec<u8>> {
        payload(&std::mem::take(&mut self.rest))
    }
}

fn payload(line: &[u8]) -> Option<Vec<u8>> {
    let line = line.strip_prefix(b"\xef\xbb\xbf").unwrap_or(line);
    let payload = line.strip_prefix(b"data:")?.trim_ascii();
    (!payload.is_empty()).then(|| payload.to_vec())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn read(pieces: &[&[u8]]) -> Vec<String> {
        let mut lines = Lines::default();
        let mut payloads: Vec<_> = pieces.iter().flat_map(|piece| lines.push(piece)).collect();
        payloads.extend(lines.finish());
        payloads.into_iter().map(|payload| String::from_utf8(payload).unwrap()).collect()
    }

    const STREAM: &str = "\u{feff}data: {\"a\":\"größe 🦀\"}\r\n\r\n: OPENROUTER PROCESSING\n\nevent: x\nid: 1\n\
        data:{}\ndata: [DONE]\n\ndata:\n\ndatum: x\n\ndata: last";

    #[test]
    fn payloads_are_read_whatever_else_stands_between_them() {
        assert_eq!(read(&[STREAM.as_bytes()]), ["{\"a\":\"größe 🦀\"}", "{}", "[DONE]", "last"]);
        assert_eq!(read(&[]), Vec::<String>::new());
    }

    proptest! {
        #[test]
        fn it_does_not_matter_where_the_bytes_are_cut(mut cuts in prop::collection::vec(0..STREAM.len(), 0..20)) {
            cuts.sort_unstable();
            let ends = cuts.iter().copied().chain([STREAM.len()]);
            let mut begin = 0;
            let pieces: Vec<&[u8]> = ends
                .map(|end| &STREAM.as_bytes()[std::mem::replace(&mut begin, end)..end])
                .collect();
            prop_assert_eq!(read(&pieces), read(&[STREAM.as_bytes()]));
        }
    }
}
