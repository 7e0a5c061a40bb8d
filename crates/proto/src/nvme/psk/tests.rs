use super::*;
use crate::nvme::auth::Hash;

const HOST: &str = "nqn.psk-test-host";
const SUBSYSTEM: &str = "nqn.psk-test-subsys";
/// Those of libnvme's tests.
const KEYS: [&str; 3] = [
    "NVMeTLSkey-1:00:VRLbtnN9AQb2WXW3c9+wEf/DRLz0QuLdbYvEhwtdWwNf9LrZ:",
    "NVMeTLSkey-1:01:VRLbtnN9AQb2WXW3c9+wEf/DRLz0QuLdbYvEhwtdWwNf9LrZ:",
    "NVMeTLSkey-1:02:VRLbtnN9AQb2WXW3c9+wEf/DRLz0QuLdbYvEhwtdWwP/w0S89ELi3W2LxIcLXVsDn8kXZQ==:",
];

fn key(text: &str) -> TlsKey {
    TlsKey::parse(text).unwrap()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[test]
fn keys_are_read_as_they_are_written() {
    for text in KEYS {
        assert_eq!(key(text).interchange(), text);
    }
    let made = TlsKey::generate(|bytes| bytes.fill(7));
    assert_eq!(TlsKey::parse(&made.interchange()), Some(made));
    for wrong in [
        "",
        "NVMeTLSkey-1:01:VRLbtnN9AQb2WXW3c9+wEf/DRLz0QuLdbYvEhwtdWwNf9LrZ",
        "NVMeTLSkey-1:03:VRLbtnN9AQb2WXW3c9+wEf/DRLz0QuLdbYvEhwtdWwNf9LrZ:",
        "NVMeTLSkey-1:01:VRLbtnN9AQb2WXW3c9+wEf/DRLz0QuLdbYvEhwtdWwNf9Lra:",
        "NVMeTLSkey-2:01:VRLbtnN9AQb2WXW3c9+wEf/DRLz0QuLdbYvEhwtdWwNf9LrZ:",
        "NVMeTLSkey-1:01:VRLb:",
        "NVMeTLSkey-1:01:!:",
        "DHHC-1:01:VRLbtnN9AQb2WXW3c9+wEf/DRLz0QuLdbYvEhwtdWwNf9LrZ:",
        // A key of zeroes, whole by its CRC.
        "NVMeTLSkey-1:00:AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAACtClUZ:",
    ] {
        assert!(TlsKey::parse(wrong).is_none(), "{wrong}");
    }
}

/// The identities are those of libnvme's tests, the first two of each key; the keys were computed from RFC 5869 and RFC 8446 by Python's
/// `hmac`, with a program that also reproduces the identities and the keys of the Linux kernel's tests.
#[test]
fn derivations_are_the_published_ones() {
    let offers = key(KEYS[1]).offers(HOST, SUBSYSTEM);
    let names = format!("{HOST} {SUBSYSTEM}");
    let identities: Vec<_> = offers.iter().map(|psk| psk.identity.as_str()).collect();
    assert_eq!(
        identities,
        [
            format!("NVMe1R01 {names} iSbjiStwJ/1TrTvDlt2fjFmzvsytOJelidNnA+X5lEU="),
            format!("NVMe1R01 {names} 66GuqV08TsAGII39teWUfwQwizjv06Jy8jOcX3NAAzM="),
            format!("NVMe0R01 {names}"),
        ]
    );
    assert_eq!(
        hex(&offers[0].key),
        "8fc3c0badfd4c0c66fa3ca33aadd0314f85536cc9bc47338b60f3e6e563786ca"
    );
    assert_eq!(
        hex(&offers[1].key),
        "b9f5ab2a41ba6e72a23a12066302a2f775fa6c0942c8e0b18ca8ac07edf305e2"
    );
    let longer = key(KEYS[2]).offers(HOST, SUBSYSTEM);
    assert_eq!(
        longer[0].identity,
        format!(
            "NVMe1R02 {names} QhW2+Rp6RzHlNtCslyRxMnwJ11tKKhz8JCAQpQ+XUD8f9td1VeH5h53yz2wKJG1a"
        )
    );
    assert_eq!(
        hex(&longer[0].key),
        "a2b2f943f479fc682555cec89857c80ed004ce92f32a973d5764155bb7e36b17a85368a0666d250afac9282dda2e62ca"
    );
    assert_eq!(longer[0].hash, Hash::Sha384);
    assert_eq!(
        longer[1].identity,
        format!(
            "NVMe1R02 {names} RsKmYJ3nAn1ApjjMloJFbAkLPivONDAX/xW327YBUsn2eGShXSjCZvBaOxscLqmz"
        )
    );
}

/// What the Linux kernel's tests derive from a key that an authentication has generated, which is used as it is.
#[test]
fn the_kernel_derives_the_same() {
    let generated: [u8; 32] = [
        0x17, 0x33, 0xc5, 0x9f, 0xa7, 0xf4, 0x8f, 0xcf, 0x37, 0xf5, 0xf2, 0x6f, 0xc4, 0xff, 0x02,
        0x68, 0xad, 0x4f, 0x78, 0xe0, 0x30, 0xf4, 0xf3, 0xb0, 0xbf, 0xd1, 0xd4, 0x7e, 0x7b, 0xb1,
        0x44, 0x7a,
    ];
    let bound = TlsKey::generate(|bytes| bytes.copy_from_slice(&generated)).interchange();
    let plain = key(&bound.replace("-1:01:", "-1:00:"));
    let offers = plain.offers("hostnqn", "subsysnqn");
    assert_eq!(
        offers[0].identity,
        "NVMe1R01 hostnqn subsysnqn OldoKuTfKddMuyCznAZojkWD7P4D9/AtzDzLimtOxqI="
    );
    assert_eq!(
        hex(&offers[0].key),
        "3c17da628474a04d2247c4cab47968c915388193f7c071bd9489cc3666cd7cc8"
    );
    // The older derivation has the same name: it is not offered.
    assert_eq!(offers.len(), 2);
}

#[test]
fn whatever_is_offered_is_answered_by_its_own_key_alone() {
    for text in KEYS {
        let own = key(text);
        for offer in own.offers(HOST, SUBSYSTEM) {
            let identity = Identity::parse(offer.identity.as_bytes()).unwrap();
            assert_eq!((identity.host, identity.subsystem), (HOST, SUBSYSTEM));
            assert_eq!(own.answer(&identity), Some(offer.clone()));
            let other = TlsKey::generate(|bytes| bytes.fill(1));
            // In version 0 all keys have the same name.
            let answer = other.answer(&identity);
            assert_ne!(answer.as_ref().map(|psk| &psk.key), Some(&offer.key));
            assert_eq!(answer.is_some(), identity.digest.is_none());
        }
    }
}

#[test]
fn names_that_are_too_long_for_version_0_have_version_1() {
    let (host, subsystem) = ("h".repeat(123), "s".repeat(123));
    let version_0 = |host: &str| key(KEYS[0]).offers(host, &subsystem).len() == 2;
    assert!(version_0(&host[1..]) && !version_0(&host));
    let long = format!("NVMe0R01 {host} {subsystem}");
    let long = Identity::parse(long.as_bytes()).unwrap();
    assert_eq!(key(KEYS[0]).answer(&long), None);
}

#[test]
fn identities_of_other_forms_are_none() {
    let long = "x".repeat(300);
    for wrong in [
        "",
        "NVMe0R01",
        "NVMe0R01 host",
        "NVMe0R01  subsystem",
        "NVMe0R01 host subsystem digest",
        "NVMe1R01 host subsystem",
        "NVMe1R01 host subsystem digest more",
        "NVMe0R03 host subsystem",
        "NVMe0R00 host subsystem",
        "NVMe0G01 host subsystem",
        "NVMe2R01 host subsystem digest",
        "nvme0R01 host subsystem",
        &format!("NVMe0R01 {long} {long}"),
    ] {
        assert_eq!(Identity::parse(wrong.as_bytes()), None, "{wrong}");
    }
    assert_eq!(Identity::parse(b"NVMe0R01 \xff subsystem"), None);
}

/// A ClientHello that offers these.
fn hello(identities: &[&[u8]]) -> Vec<u8> {
    let vector = |bytes: &[u8]| {
        let mut out = (bytes.len() as u16).to_be_bytes().to_vec();
        out.extend_from_slice(bytes);
        out
    };
    let mut list = Vec::new();
    for identity in identities {
        list.extend_from_slice(&vector(identity));
        list.extend_from_slice(&[0; 4]);
    }
    let mut content = vector(&list);
    content.extend_from_slice(&vector(&[32; 33]));
    let mut extensions = vec![0, 43];
    extensions.extend_from_slice(&vector(&[2, 3, 4]));
    extensions.extend_from_slice(&[0, 41]);
    extensions.extend_from_slice(&vector(&content));
    let mut hello = vec![3, 3];
    hello.extend_from_slice(&[9; 32]);
    hello.push(4);
    hello.extend_from_slice(b"sess");
    hello.extend_from_slice(&vector(&[0x13, 1]));
    hello.extend_from_slice(&[1, 0]);
    hello.extend_from_slice(&vector(&extensions));
    hello
}

#[test]
fn a_hello_offers_what_it_names() {
    let whole = hello(&[b"one", b"", b"three"]);
    let all: Vec<_> = offered(&whole).collect();
    assert_eq!(all, [&b"one"[..], b"", b"three"]);
    assert_eq!(offered(&hello(&[])).count(), 0);
    // Cut off anywhere it offers nothing that it does not hold, and nothing panics.
    for end in 0..whole.len() {
        assert!(offered(&whole[..end]).count() <= 3);
    }
    for at in 0..whole.len() {
        for value in [0, 1, 0x7f, 0xff] {
            let mut damaged = whole.clone();
            damaged[at] = value;
            offered(&damaged).for_each(drop);
        }
    }
}
