//! websocket.
