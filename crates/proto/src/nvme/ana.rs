//! Asymmetric Namespace Access (Base 2.0, section 8.1): a host reaches all of its namespaces by every controller alike, so there is one
//! group of them, and it is always optimized.

use super::identify::Data;
use super::page::Page;

/// ANAGRPID of every namespace.
pub(crate) const GROUP: u32 = 1;
/// RGO, in CDW10 of Get Log Page: groups without their namespaces.
pub(crate) const RETURN_GROUPS_ONLY: u32 = 1 << 8;

/// ANATT: what a change of state takes at most, in seconds. There are no changes, but zero is not allowed.
const TRANSITION_S: u8 = 1;
/// ANACAP: groups can be optimized, and a namespace stays in its group while it is attached.
const CAPABILITIES: u8 = 1 | 1 << 6;
const GROUPS: u32 = 1;
const OPTIMIZED: u8 = 1;

/// What Identify Controller says of it beside CMIC.
pub(crate) fn put_capabilities(page: &mut Data) {
    page.put_u8(342, TRANSITION_S);
    page.put_u8(343, CAPABILITIES);
    page.put_u32(344, GROUP);
    page.put_u32(348, GROUPS);
}

/// The log (section 5.16.1.13) of these namespaces, after so many changes; a group without any is left out.
pub(crate) fn log(nsids: &[u32], changes: u64, groups_only: bool) -> Vec<u8> {
    let mut header = Page::<16>::zeroed();
    header.put_u64(0, changes);
    header.put_u16(8, u16::from(!nsids.is_empty()));
    let mut log = header.0.to_vec();
    if !nsids.is_empty() {
        let listed = if groups_only { &[] } else { nsids };
        let mut group = Page::<32>::zeroed();
        group.put_u32(0, GROUP);
        group.put_u32(4, listed.len() as u32);
        group.put_u64(8, changes);
        group.put_u8(16, OPTIMIZED);
        log.extend_from_slice(&group.0);
        log.extend(listed.iter().flat_map(|nsid| nsid.to_le_bytes()));
    }
    log
}
