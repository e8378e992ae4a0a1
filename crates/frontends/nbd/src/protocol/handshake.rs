//! [`Handshake`]: option negotiation of one client (NBD "Handshake"). It maps input bytes to output bytes and
//! uses no socket. For any input it replies, asks for more input, or requests that the connection
//! be closed.

use crate::export::{Export, ListenerExports};
use crate::protocol::wire::{
    BASE_ALLOCATION, BASE_ALLOCATION_ID, INIT_MAGIC, OPTION_HEADER_BYTES, OPTION_MAGIC,
    OPTION_REPLY_MAGIC, STRING_BYTES_MAX, WireInput, handshake_flag, info, option,
    option_reply as rep,
};

/// Longest option that is skipped; a client that sends a longer one is dropped.
const SKIP_BYTES_MAX: u32 = 1 << 20;

/// Properties that a client has negotiated.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct NegotiatedSession {
    /// Reads are answered with structured chunks (`NBD_OPT_STRUCTURED_REPLY`).
    pub(crate) structured: bool,
    /// `base:allocation` was selected.
    pub(crate) allocation: bool,
    /// The client asked for block sizes, and therefore observes them.
    pub(crate) sized: bool,
}

/// Result of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HandshakeStep {
    /// The input does not hold a complete message.
    NeedMore,
    /// This many bytes were consumed; another message may follow.
    Consumed(usize),
    /// This many bytes were consumed, and the transmission phase begins.
    Transmission(usize),
    /// The client aborts (`NBD_OPT_ABORT`): send the pending output, then close.
    Abort(usize),
    /// The client violated the protocol in a way that allows no reply.
    Violation(&'static str),
}

/// Negotiation state of one client.
#[derive(Clone, Debug, Default)]
pub(crate) struct Handshake {
    greeted: bool,
    no_zeroes: bool,
    /// Bytes of an oversized option still to be skipped.
    skip: usize,
    session: NegotiatedSession,
    /// Index of the export for which `base:allocation` was selected.
    allocation_of: Option<usize>,
    /// Index of the export that `EXPORT_NAME` or `GO` has selected.
    selected: usize,
}

impl Handshake {
    /// Returns the server's greeting.
    pub(crate) fn greeting() -> [u8; 18] {
        let mut out = [0; 18];
        out[..8].copy_from_slice(&INIT_MAGIC.to_be_bytes());
        out[8..16].copy_from_slice(&OPTION_MAGIC.to_be_bytes());
        let flags = handshake_flag::FIXED_NEWSTYLE | handshake_flag::NO_ZEROES;
        out[16..].copy_from_slice(&flags.to_be_bytes());
        out
    }

    /// Returns the options negotiated so far. A metadata context is that of one export (NBD
    /// "Metadata querying").
    pub(crate) fn session(&self) -> NegotiatedSession {
        NegotiatedSession { allocation: self.allocation_of == Some(self.selected), ..self.session }
    }

    /// Returns the index of the export that was selected, once the transmission phase begins.
    pub(crate) fn selected(&self) -> usize {
        self.selected
    }

    /// Parses at most one message at the start of `input` and appends the reply to `out`.
    pub(crate) fn step(
        &mut self,
        input: &[u8],
        exports: ListenerExports<'_>,
        out: &mut Vec<u8>,
    ) -> HandshakeStep {
        if self.skip > 0 {
            let used = self.skip.min(input.len());
            self.skip -= used;
            return if used == 0 { HandshakeStep::NeedMore } else { HandshakeStep::Consumed(used) };
        }
        let mut rest = WireInput(input);
        if !self.greeted {
            // NBD "Client flags": an unknown flag MUST close the connection.
            let known = handshake_flag::FIXED_NEWSTYLE | handshake_flag::NO_ZEROES;
            return match rest.u32() {
                None => HandshakeStep::NeedMore,
                Some(flags) if flags & !u32::from(known) != 0 => {
                    HandshakeStep::Violation("unknown client flags")
                }
                Some(flags) => {
                    self.greeted = true;
                    self.no_zeroes = flags & u32::from(handshake_flag::NO_ZEROES) != 0;
                    HandshakeStep::Consumed(4)
                }
            };
        }
        let (magic, opt, length) = match (rest.u64(), rest.u32(), rest.u32()) {
            (Some(magic), _, _) if magic != OPTION_MAGIC => {
                return HandshakeStep::Violation("bad option magic");
            }
            (Some(magic), Some(opt), Some(length)) => (magic, opt, length),
            _ => return HandshakeStep::NeedMore,
        };
        debug_assert_eq!(magic, OPTION_MAGIC);
        if length > exports.option_bytes_max() {
            if opt == option::EXPORT_NAME || length > SKIP_BYTES_MAX {
                return HandshakeStep::Violation("oversized option");
            }
            self.skip = length as usize;
            reply_error(out, opt, rep::ERR_TOO_BIG, "the option is too long");
            return HandshakeStep::Consumed(OPTION_HEADER_BYTES);
        }
        let Some(data) = rest.bytes(length as usize) else {
            return HandshakeStep::NeedMore;
        };
        let used = OPTION_HEADER_BYTES + data.len();
        match opt {
            option::EXPORT_NAME => self.export_name(data, exports, out, used),
            option::ABORT => {
                reply(out, opt, rep::ACK, &[]);
                HandshakeStep::Abort(used)
            }
            option::LIST => {
                list(data, exports, out);
                HandshakeStep::Consumed(used)
            }
            option::INFO => {
                self.info(opt, data, exports, out);
                HandshakeStep::Consumed(used)
            }
            option::GO => match self.info(opt, data, exports, out) {
                true => HandshakeStep::Transmission(used),
                false => HandshakeStep::Consumed(used),
            },
            option::STRUCTURED_REPLY => {
                if data.is_empty() {
                    self.session.structured = true;
                    reply(out, opt, rep::ACK, &[]);
                } else {
                    reply_error(out, opt, rep::ERR_INVALID, "STRUCTURED_REPLY has no data");
                }
                HandshakeStep::Consumed(used)
            }
            option::LIST_META_CONTEXT | option::SET_META_CONTEXT => {
                self.meta_context(opt, data, exports, out);
                HandshakeStep::Consumed(used)
            }
            _ => {
                reply_error(out, opt, rep::ERR_UNSUP, "unknown option");
                HandshakeStep::Consumed(used)
            }
        }
    }

    /// Handles `NBD_OPT_EXPORT_NAME`, which has no error reply: an unknown name closes the
    /// connection.
    fn export_name(
        &mut self,
        name: &[u8],
        exports: ListenerExports<'_>,
        out: &mut Vec<u8>,
        used: usize,
    ) -> HandshakeStep {
        let Some(selected) = exports.find(name) else {
            return HandshakeStep::Violation("unknown export name");
        };
        self.selected = selected;
        let export = &exports.all[selected];
        out.extend_from_slice(&export.bytes.to_be_bytes());
        out.extend_from_slice(&export.flags(self.session.structured).to_be_bytes());
        if !self.no_zeroes {
            out.extend_from_slice(&[0; 124]);
        }
        HandshakeStep::Transmission(used)
    }

    /// Handles `NBD_OPT_INFO` and `NBD_OPT_GO`. Returns whether the reply was `NBD_REP_ACK`.
    fn info(
        &mut self,
        opt: u32,
        data: &[u8],
        exports: ListenerExports<'_>,
        out: &mut Vec<u8>,
    ) -> bool {
        let Some((name, asked)) = parse_info(data) else {
            reply_error(out, opt, rep::ERR_INVALID, "malformed name or information requests");
            return false;
        };
        let Some(selected) = exports.find(name) else {
            reply_error(out, opt, rep::ERR_UNKNOWN, "no such export");
            return false;
        };
        let export: &Export = &exports.all[selected];
        let wants = |kind: u16| asked.chunks_exact(2).any(|c| c == kind.to_be_bytes());
        let mut body = info::EXPORT.to_be_bytes().to_vec();
        body.extend_from_slice(&export.bytes.to_be_bytes());
        body.extend_from_slice(&export.flags(self.session.structured).to_be_bytes());
        reply(out, opt, rep::INFO, &body);
        // Sent even if not requested: clients ignore unknown information, and before
        // ERR_BLOCK_SIZE_REQD it saves a round trip.
        body.clear();
        body.extend_from_slice(&info::BLOCK_SIZE.to_be_bytes());
        for size in [export.block_min, export.block_preferred, export.block_max] {
            body.extend_from_slice(&size.to_be_bytes());
        }
        reply(out, opt, rep::INFO, &body);
        for (kind, text) in [(info::NAME, &export.name), (info::DESCRIPTION, &export.description)] {
            if wants(kind) {
                body.clear();
                body.extend_from_slice(&kind.to_be_bytes());
                body.extend_from_slice(text.as_bytes());
                reply(out, opt, rep::INFO, &body);
            }
        }
        let sized = wants(info::BLOCK_SIZE);
        if export.sizes_required && !sized {
            let text = "this export has sectors over 512 bytes: ask for NBD_INFO_BLOCK_SIZE";
            reply_error(out, opt, rep::ERR_BLOCK_SIZE_REQD, text);
            return false;
        }
        if opt == option::GO {
            self.session.sized = sized;
            self.selected = selected;
        }
        reply(out, opt, rep::ACK, &[]);
        true
    }

    /// Handles `NBD_OPT_LIST_META_CONTEXT` and `NBD_OPT_SET_META_CONTEXT` (also NBD "Metadata
    /// querying").
    fn meta_context(
        &mut self,
        opt: u32,
        data: &[u8],
        exports: ListenerExports<'_>,
        out: &mut Vec<u8>,
    ) {
        let set = opt == option::SET_META_CONTEXT;
        if set {
            // "replaces all previously-set metadata contexts (including when this command fails)".
            self.allocation_of = None;
        }
        if !self.session.structured {
            let text = "structured replies must be negotiated first";
            return reply_error(out, opt, rep::ERR_INVALID, text);
        }
        let Some((name, queries)) = parse_meta(data) else {
            return reply_error(out, opt, rep::ERR_INVALID, "malformed queries");
        };
        let Some(export) = exports.find(name) else {
            return reply_error(out, opt, rep::ERR_UNKNOWN, "no such export");
        };
        let mut selected = !set && queries.clone().next().is_none();
        for query in queries {
            if !query.contains(&b':') {
                return reply_error(out, opt, rep::ERR_INVALID, "a query starts with a namespace");
            }
            // A namespace without a leaf lists all its contexts, and selects none.
            selected |= query == BASE_ALLOCATION.as_bytes() || (!set && query == b"base:");
        }
        if selected {
            let id = if set { BASE_ALLOCATION_ID } else { 0 };
            let mut body = id.to_be_bytes().to_vec();
            body.extend_from_slice(BASE_ALLOCATION.as_bytes());
            reply(out, opt, rep::META_CONTEXT, &body);
            if set {
                self.allocation_of = Some(export);
            }
        }
        reply(out, opt, rep::ACK, &[]);
    }
}

/// Handles `NBD_OPT_LIST`.
fn list(data: &[u8], exports: ListenerExports<'_>, out: &mut Vec<u8>) {
    if !data.is_empty() {
        return reply_error(out, option::LIST, rep::ERR_INVALID, "LIST has no data");
    }
    for export in exports.iter() {
        let mut body = (export.name.len() as u32).to_be_bytes().to_vec();
        body.extend_from_slice(export.name.as_bytes());
        body.extend_from_slice(export.description.as_bytes());
        reply(out, option::LIST, rep::SERVER, &body);
    }
    reply(out, option::LIST, rep::ACK, &[]);
}

/// Parses the name and the requested information types, two bytes each.
fn parse_info(data: &[u8]) -> Option<(&[u8], &[u8])> {
    let mut input = WireInput(data);
    let name = input.string().filter(|n| n.len() <= STRING_BYTES_MAX)?;
    let count = input.u16()?;
    let asked = input.bytes(usize::from(count) * 2)?;
    input.0.is_empty().then_some((name, asked))
}

/// Parses the name and the queries; checks that all queries are complete.
fn parse_meta(data: &[u8]) -> Option<(&[u8], impl Iterator<Item = &[u8]> + Clone)> {
    let mut input = WireInput(data);
    let name = input.string().filter(|n| n.len() <= STRING_BYTES_MAX)?;
    let count = input.u32()?;
    let rest = input.0;
    for _ in 0..count {
        input.string().filter(|q| q.len() <= STRING_BYTES_MAX)?;
    }
    if !input.0.is_empty() {
        return None;
    }
    let mut queries = WireInput(rest);
    Some((name, std::iter::from_fn(move || queries.string()).fuse()))
}

fn reply(out: &mut Vec<u8>, opt: u32, kind: u32, body: &[u8]) {
    out.extend_from_slice(&OPTION_REPLY_MAGIC.to_be_bytes());
    out.extend_from_slice(&opt.to_be_bytes());
    out.extend_from_slice(&kind.to_be_bytes());
    out.extend_from_slice(&(body.len() as u32).to_be_bytes());
    out.extend_from_slice(body);
}

fn reply_error(out: &mut Vec<u8>, opt: u32, kind: u32, text: &str) {
    reply(out, opt, kind, text.as_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::NbdConfig;

    fn export(sector_bytes: u32) -> Export {
        let limits = block::Limits {
            sector_bytes,
            sectors: 2048,
            max_sectors: 256,
            optimal_sectors: 1,
            queue_depth: 8,
            volatile_cache: true,
            atomic: block::AtomicLimits::NONE,
        };
        let config = NbdConfig { name: "drive".into(), ..NbdConfig::default() };
        Export::new(&limits, &config, 32 << 20)
    }

    /// One export at one listener.
    fn only(export: &Export) -> ListenerExports<'_> {
        ListenerExports { all: std::slice::from_ref(export), at: &[0] }
    }

    fn opt(kind: u32, data: &[u8]) -> Vec<u8> {
        let mut out = OPTION_MAGIC.to_be_bytes().to_vec();
        out.extend_from_slice(&kind.to_be_bytes());
        out.extend_from_slice(&(data.len() as u32).to_be_bytes());
        out.extend_from_slice(data);
        out
    }

    fn started() -> Handshake {
        Handshake { greeted: true, ..Handshake::default() }
    }

    /// Returns the types of the replies, after checking that each is well formed.
    fn kinds(mut out: &[u8], opt: u32) -> Vec<u32> {
        let mut kinds = Vec::new();
        while !out.is_empty() {
            let mut input = WireInput(out);
            assert_eq!(input.u64(), Some(OPTION_REPLY_MAGIC));
            assert_eq!(input.u32(), Some(opt));
            kinds.push(input.u32().unwrap());
            input.string().unwrap();
            out = input.0;
        }
        kinds
    }

    #[test]
    fn every_prefix_of_a_message_asks_for_more() {
        let message = opt(option::GO, &[0, 0, 0, 0, 0, 1, 0, 3]);
        for len in 0..message.len() {
            let mut out = Vec::new();
            assert_eq!(
                started().step(&message[..len], only(&export(4096)), &mut out),
                HandshakeStep::NeedMore
            );
            assert!(out.is_empty());
        }
    }

    #[test]
    fn large_sectors_want_a_client_that_asks_for_block_sizes() {
        let unsized_go = opt(option::GO, &[0, 0, 0, 0, 0, 0]);
        let (mut out, mut h) = (Vec::new(), started());
        assert_eq!(
            h.step(&unsized_go, only(&export(4096)), &mut out),
            HandshakeStep::Consumed(unsized_go.len())
        );
        assert_eq!(kinds(&out, 7), [rep::INFO, rep::INFO, rep::ERR_BLOCK_SIZE_REQD]);
        out.clear();
        let go = h.step(&unsized_go, only(&export(512)), &mut out);
        assert_eq!(go, HandshakeStep::Transmission(unsized_go.len()));
        assert!(!h.session().sized);
    }

    #[test]
    fn contexts_need_structured_replies_and_a_namespace() {
        let query = |name: &str| {
            let mut data = vec![0, 0, 0, 0, 0, 0, 0, 1];
            data.extend_from_slice(&(name.len() as u32).to_be_bytes());
            data.extend_from_slice(name.as_bytes());
            opt(option::SET_META_CONTEXT, &data)
        };
        let mut h = started();
        let run = |h: &mut Handshake, name: &str| {
            let mut out = Vec::new();
            h.step(&query(name), only(&export(512)), &mut out);
            kinds(&out, option::SET_META_CONTEXT)
        };
        assert_eq!(run(&mut h, BASE_ALLOCATION), [rep::ERR_INVALID]);
        h.session.structured = true;
        assert_eq!(run(&mut h, BASE_ALLOCATION), [rep::META_CONTEXT, rep::ACK]);
        assert!(h.session().allocation);
        assert_eq!(run(&mut h, "base:"), [rep::ACK]);
        assert!(!h.session().allocation, "replaced by a query that selects nothing");
        assert_eq!(run(&mut h, "nonsense"), [rep::ERR_INVALID]);
        assert_eq!(run(&mut h, "x-other:thing"), [rep::ACK]);
    }

    /// Two exports of one listener: each is selected by its name, the first by the empty name, and
    /// a metadata context belongs to the export for which it was set.
    #[test]
    fn an_export_is_selected_by_its_name() {
        let named = |name: &str, bytes| Export { name: name.into(), bytes, ..export(512) };
        let all = [named("a", 1 << 20), named("hidden", 2 << 20), named("b", 3 << 20)];
        let exports = ListenerExports { all: &all, at: &[2, 0] };
        let go = |h: &mut Handshake, name: &str| {
            let mut data = (name.len() as u32).to_be_bytes().to_vec();
            data.extend_from_slice(name.as_bytes());
            data.extend_from_slice(&[0, 0]);
            let mut out = Vec::new();
            let step = h.step(&opt(option::GO, &data), exports, &mut out);
            matches!(step, HandshakeStep::Transmission(_)).then(|| {
                let bytes = &out[OPTION_HEADER_BYTES + 4 + 2..][..8];
                (h.selected(), u64::from_be_bytes(bytes.try_into().unwrap()))
            })
        };
        assert_eq!(go(&mut started(), "a"), Some((0, 1 << 20)));
        assert_eq!(go(&mut started(), "b"), Some((2, 3 << 20)));
        assert_eq!(go(&mut started(), ""), Some((2, 3 << 20)), "the default");
        assert_eq!(go(&mut started(), "hidden"), None, "it is at another listener");
        assert_eq!(go(&mut started(), "c"), None);
        let mut out = Vec::new();
        started().step(&opt(option::LIST, &[]), exports, &mut out);
        assert_eq!(kinds(&out, option::LIST), [rep::SERVER, rep::SERVER, rep::ACK]);
        for (name, allocation) in [("a", true), ("b", false)] {
            let mut h = started();
            h.session.structured = true;
            let mut data = vec![0, 0, 0, 1, b'a', 0, 0, 0, 1];
            data.extend_from_slice(&(BASE_ALLOCATION.len() as u32).to_be_bytes());
            data.extend_from_slice(BASE_ALLOCATION.as_bytes());
            h.step(&opt(option::SET_META_CONTEXT, &data), exports, &mut Vec::new());
            assert!(go(&mut h, name).is_some());
            assert_eq!(h.session().allocation, allocation, "{name}");
        }
    }

    proptest::proptest! {
        #[test]
        fn no_bytes_make_it_panic_or_stand_still(
            data in proptest::collection::vec(proptest::prelude::any::<u8>(), 0..200),
            kind in 0u32..13,
        ) {
            let mut h = started();
            h.session.structured = true;
            let (message, mut out) = (opt(kind, &data), Vec::new());
            match h.step(&message, only(&export(512)), &mut out) {
                HandshakeStep::Consumed(n) | HandshakeStep::Transmission(n) | HandshakeStep::Abort(n) => {
                    proptest::prop_assert_eq!(n, message.len());
                }
                HandshakeStep::Violation(_) => {}
                HandshakeStep::NeedMore => proptest::prop_assert!(false, "a whole message is enough"),
            }
            let _ = started().step(&data, only(&export(512)), &mut out);
        }
    }
}
