//! Which of many events count: newest versions of replaceable ones, minus what their authors deleted.
