//! Rows about kedge's own log.

use super::super::form::Form::{Bool, Int, Scalar, Text, Whole};
use super::super::form::I32;
use super::super::row::{Row, any, fixed, refused};

const LEVEL: &str = "the level of the log is kedge's own flag --v or --debug";
const ONE_STREAM: &str = "the log is one stream, written line by line";

pub(in super::super) const ROWS: &[Row] = &[
    fixed(("logging.format", "logging-format"), "text", Text, "the log is text"),
    any(("logging.flushFrequency", "log-flush-frequency"), "5s", Scalar, "each line is written at once"),
    fixed(("logging.verbosity", "v"), "0", Int(0, I32), LEVEL),
    refused(("logging.vmodule", "vmodule"), Whole, LEVEL),
    fixed(("logging.options.text.splitStream", "log-text-split-stream"), "false", Bool, ONE_STREAM),
    fixed(("logging.options.text.infoBufferSize", "log-text-info-buffer-size"), "0", Scalar, ONE_STREAM),
    fixed(("logging.options.json.splitStream", "log-json-split-stream"), "false", Bool, ONE_STREAM),
    fixed(("logging.options.json.infoBufferSize", "log-json-info-buffer-size"), "0", Scalar, ONE_STREAM),
];
