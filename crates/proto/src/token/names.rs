//! Names of the headers that requests with tokens and their answers have, in lower case.

/// The token.
pub const TOKEN: &str = "x-amz-rdma-token";
/// The status of the transfer, in three digits.
pub const REPLY: &str = "x-amz-rdma-reply";
/// How many bytes were moved, in decimal.
pub const BYTES_TRANSFERRED: &str = "x-amz-rdma-bytes-transferred";
/// Of all of an object that was placed: the CRC-64/NVME of its bytes, eight of them in base64.
pub const CHECKSUM: &str = "x-amz-rdma-checksum-crc64nvme";
/// The library that minted the token: `cuobj` when it is there at all.
pub const AGENT: &str = "x-amz-rdma-agent";
/// The protocol of a control request.
pub const PROTOCOL: &str = "x-amz-rdma-protocol";
/// Says `unsupported` when that protocol is not spoken.
pub const PROTOCOL_STATUS: &str = "x-amz-rdma-protocol-status";
/// What a server that declines would take.
pub const ACCEPT: &str = "x-amz-rdma-accept";
/// Repeats the sequence of an `ort1` token, in 16 digits.
pub const ACK: &str = "x-amz-rdma-ack";
/// Transports: of a connect request in order of preference, of its answer the chosen one.
pub const TRANSPORT: &str = "x-amz-rdma-transport";
/// 32 digits, one's own.
pub const NONCE: &str = "x-amz-rdma-nonce";
/// One's own end of a connection, in base64url.
pub const ENDPOINT: &str = "x-amz-rdma-endpoint";
/// 32 digits.
pub const SESSION: &str = "x-amz-rdma-session";
/// What a session may do.
pub const LIMITS: &str = "x-amz-rdma-limits";
/// Where to connect for iWARP, as `address:port`.
pub const CM: &str = "x-amz-rdma-cm";
/// How that connection is protected: [`TLS`], or missing for in the clear.
pub const CM_SECURITY: &str = "x-amz-rdma-cm-security";
/// By TLS, with a certificate for the host that this door was found by.
pub const TLS: &str = "tls";
/// The path of the Unix socket for shared memory.
pub const UDS: &str = "x-amz-rdma-uds";

/// The connect request of the open token.
pub const CONNECT_PATH: &str = "/.ort1/connect";
/// Its end.
pub const DISCONNECT_PATH: &str = "/.ort1/disconnect";
/// The name of the protocol of the open token.
pub const ORT1: &str = "ort1";
/// The name of hipObject's second protocol.
pub const HIPOBJ_RC_V2: &str = "hipobj-rc-v2";
