//! strategy/mod
