//! Server-sent events out of bytes, as WHATWG HTML §9.2.6 reads them.

use bytes::Bytes;

/// The most bytes of one event. A snapshot is one event, so this bounds what a view may hold.
pub(crate) const EVENT_BYTES: usize = 64 * 1024 * 1024;

/// One event. Fields that were not sent are empty.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct SseEvent {
    pub(crate) id: String,
    pub(crate) name: String,
    pub(crate) data: String,
}

/// What broke a stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum SseError {
    #[error("an event is larger than {0} bytes")]
    TooLarge(usize),
    #[error("an event is not UTF-8")]
    NotText,
}

/// Takes bytes as they arrive and gives the events that are complete.
#[derive(Debug)]
pub(crate) struct SseParser {
    limit: usize,
    /// The line that has begun, without its end.
    line: Vec<u8>,
    /// Whether the last byte was a carriage return, whose line feed still belongs to the same line end.
    after_cr: bool,
    at_start: bool,
    id: String,
    name: String,
    data: String,
    has_data: bool,
}

impl SseParser {
    /// A parser that refuses an event above `limit` bytes.
    pub(crate) fn new(limit: usize) -> Self {
        Self {
            limit,
            line: Vec::new(),
            after_cr: false,
            at_start: true,
            id: String::new(),
            name: String::new(),
            data: String::new(),
            has_data: false,
        }
    }

    /// Appends the events that `chunk` completes to `events`.
    ///
    /// # Errors
    /// When an event is too large or not UTF-8. The parser is of no use afterwards.
    pub(crate) fn push(&mut self, chunk: &Bytes, events: &mut Vec<SseEvent>) -> Result<(), SseError> {
        let mut rest: &[u8] = chunk;
        while !rest.is_empty() {
            if std::mem::take(&mut self.after_cr) && rest[0] == b'\n' {
                rest = &rest[1..];
                continue;
            }
            let end = rest.iter().position(|byte| matches!(byte, b'\n' | b'\r'));
            let part = &rest[..end.unwrap_or(rest.len())];
            if self.line.len() + self.data.len() + part.len() > self.limit {
                return Err(SseError::TooLarge(self.limit));
            }
            self.line.extend_from_slice(part);
            let Some(end) = end else { return Ok(()) };
            self.after_cr = rest[end] == b'\r';
            rest = &rest[end + 1..];
            self.end_line(events)?;
        }
        Ok(())
    }

    fn end_line(&mut self, events: &mut Vec<SseEvent>) -> Result<(), SseError> {
        let line = std::mem::take(&mut self.line);
        let mut line = std::str::from_utf8(&line).map_err(|_| SseError::NotText)?;
        if std::mem::take(&mut self.at_start) {
            line = line.strip_prefix('\u{feff}').unwrap_or(line);
        }
        if line.is_empty() {
            let event = SseEvent {
                id: self.id.clone(),
                name: std::mem::take(&mut self.name),
                data: std::mem::take(&mut self.data),
            };
            if std::mem::take(&mut self.has_data) {
                events.push(event);
            }
            return Ok(());
        }
        let (field, value) = line.split_once(':').unwrap_or((line, ""));
        let value = value.strip_prefix(' ').unwrap_or(value);
        match field {
            "id" if !value.contains('\0') => value.clone_into(&mut self.id),
            "event" => value.clone_into(&mut self.name),
            "data" => {
                if std::mem::replace(&mut self.has_data, true) {
                    self.data.push('\n');
                }
                self.data.push_str(value);
            }
            _ => {}
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(chunks: &[&[u8]]) -> Result<Vec<SseEvent>, SseError> {
        let mut parser = SseParser::new(64);
        let mut events = Vec::new();
        for chunk in chunks {
            parser.push(&Bytes::copy_from_slice(chunk), &mut events)?;
        }
        Ok(events)
    }

    fn event(id: &str, name: &str, data: &str) -> SseEvent {
        SseEvent { id: id.into(), name: name.into(), data: data.into() }
    }

    #[test]
    fn every_cut_of_the_bytes_gives_the_same_events() {
        let text =
            "\u{feff}: hello\r\nid: 1:2\r\nevent: snapshot\rdata: a\ndata:b é\n\n\ndata\n\nevent: x\n\n"
                .as_bytes();
        let expected = vec![event("1:2", "snapshot", "a\nb é"), event("1:2", "", "")];
        for cut in 0..=text.len() {
            assert_eq!(parse(&[&text[..cut], &text[cut..]]).unwrap(), expected, "cut at {cut}");
        }
        let bytes: Vec<&[u8]> = text.chunks(1).collect();
        assert_eq!(parse(&bytes).unwrap(), expected);
    }

    #[test]
    fn an_event_that_was_not_ended_is_not_given() {
        assert_eq!(parse(&[b"data: a\n"]).unwrap(), []);
    }

    #[test]
    fn events_are_bounded_as_one_line_and_as_many() {
        assert_eq!(parse(&[&[b'a'; 65]]), Err(SseError::TooLarge(64)));
        assert_eq!(parse(&[&b"data: 0123456789\n".repeat(8)]), Err(SseError::TooLarge(64)));
        assert!(parse(&[&b"data: 0123456789\n\n".repeat(8)]).is_ok());
    }

    #[test]
    fn bytes_that_are_no_text_are_refused() {
        assert_eq!(parse(&[b"data: \xff\n\n"]), Err(SseError::NotText));
    }
}
