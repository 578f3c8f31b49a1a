//! openai.
