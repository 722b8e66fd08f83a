//! openapi/mod
