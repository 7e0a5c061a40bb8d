//! What a change makes of a key's head and kept versions: no I/O here.

use std::collections::HashSet;

use forebay_store::{Away, Change, Plan, Present, Space, Usage, VersionId};

use crate::kept::KeptView;
use crate::record::{Head, Kept, Layout, Segment, Value};

/// What becomes of the data of the key's object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Data {
    Keep,
    Clear,
    /// The new value's bytes.
    Write,
}

/// A head as it will be, and everything that goes with it.
#[derive(Debug, Clone)]
pub(crate) struct Draft {
    pub head: Head,
    pub data: Data,
    pub put: Vec<Kept>,
    pub removed: Vec<u64>,
    /// Stripes that nothing refers to afterwards.
    pub freed: Vec<Segment>,
    /// Names of bytes elsewhere that nothing refers to afterwards.
    pub forgotten: Vec<Away>,
    /// Newest kept versions, newest first; enough of them to say which is the newest after this change.
    list: Vec<Kept>,
    null: Option<Kept>,
    /// Nothing of the others expires before.
    unseen_expires: Option<u64>,
    space: Space,
}

/// What the waist's rules are told about a key.
pub(crate) fn present(head: Option<&Head>, view: &KeptView, now: u64) -> Present {
    let mut newest = view.list.iter();
    let mut kept = || newest.next().map(|kept| (kept.version(), kept.is_marker()));
    let null = |kept: &Kept| kept.version() == VersionId::NULL;
    Present {
        current: head.and_then(|head| head.current(now)).map(Value::version),
        kept_null: view.list.iter().chain(&view.null).any(null),
        newest_kept: kept(),
        second_kept: kept(),
    }
}

impl Draft {
    /// Nothing changed yet, but what has expired is gone.
    pub fn begin(space: Space, head: Head, view: KeptView, now: u64) -> Draft {
        let mut draft = Draft {
            head,
            data: Data::Keep,
            put: Vec::new(),
            removed: Vec::new(),
            freed: Vec::new(),
            forgotten: Vec::new(),
            list: view.list,
            null: view.null,
            unseen_expires: view.unseen_expires,
            space,
        };
        if draft
            .head
            .current
            .as_ref()
            .is_some_and(|value| value.is_expired(now))
        {
            draft.drop_current();
        }
        for kept in view.expired {
            draft.forget(&kept);
        }
        draft
    }

    /// Carries out a plan. `value` is what `PutCurrent` puts; `moved` are the stripes of the current value's copy, when it was inline and
    /// is kept; `now` dates markers, which get the number `fresh`.
    pub fn apply(
        &mut self,
        plan: &Plan,
        mut value: Option<Value>,
        moved: Option<Vec<Segment>>,
        fresh: VersionId,
        now: u64,
    ) {
        let mut moved = moved;
        for change in plan {
            match *change {
                Change::PutCurrent(version) => {
                    let Some(mut value) = value.take() else {
                        continue;
                    };
                    value.seq = fresh.0;
                    value.null = version == VersionId::NULL;
                    let more = Usage::of(self.space, value.size);
                    self.head.usage = self.head.usage.plus(more);
                    self.data = match value.layout {
                        Layout::Inline(_) => Data::Write,
                        Layout::Striped(_) | Layout::Away(_)
                            if self.data == Data::Keep && self.head.inline_bytes() == 0 =>
                        {
                            Data::Keep
                        }
                        Layout::Striped(_) | Layout::Away(_) => Data::Clear,
                    };
                    self.head.current = Some(value);
                }
                Change::KeepCurrent => {
                    if let Some(mut value) = self.head.current.take() {
                        if let Layout::Inline(_) = value.layout {
                            value.layout = Layout::Striped(moved.take().unwrap_or_default());
                            self.data = Data::Clear;
                        }
                        self.keep(Kept::Value(value));
                    }
                }
                Change::DropCurrent => self.drop_current(),
                Change::DropKept(version) => {
                    if let Some(kept) = self.take_kept(version) {
                        self.forget(&kept);
                    }
                }
                Change::PutMarker(version) => {
                    self.head.usage = self.head.usage.plus(Usage::MARKER);
                    self.keep(Kept::Marker {
                        seq: fresh.0,
                        null: version == VersionId::NULL,
                        modified: now,
                    });
                }
                Change::PromoteKept(version) => {
                    if let Some(Kept::Value(value)) = self.take_kept(version) {
                        self.removed.push(value.seq);
                        self.head.kept = self.head.kept.saturating_sub(1);
                        self.end_null(value.seq);
                        self.head.current = Some(value);
                    }
                }
            }
        }
        if !plan.is_empty() {
            self.head.last_seq = self.head.last_seq.max(fresh.0);
        }
    }

    /// Takes the head as it will be; `None` when nothing is left of the key.
    pub fn finish(&mut self) -> Option<Head> {
        self.head.marker = self.list.first().and_then(|kept| match kept {
            Kept::Marker {
                seq,
                null,
                modified,
            } => Some((*seq, *null, *modified)),
            Kept::Value(_) => None,
        });
        let current = self.head.current.as_ref().and_then(|value| value.expires);
        let seen = self.list.iter().chain(&self.null);
        let expires = seen.filter_map(Kept::expires).chain(current);
        self.head.expires_next = expires.chain(self.unseen_expires).min();
        let head = std::mem::replace(&mut self.head, Head::new(None));
        (!head.is_empty()).then_some(head)
    }

    /// Replaces what is kept of a value that is there: the current one, or a kept one, which is then put again.
    pub fn rewrite(&mut self, value: Value) {
        match &mut self.head.current {
            Some(current) if current.version() == value.version() => *current = value,
            Some(_) | None => self.put.push(Kept::Value(value)),
        }
    }

    /// The same for one whose bytes are elsewhere from now on. Only those of the current value can be the data of the key's object.
    pub fn relocate(&mut self, mut value: Value, layout: Layout) {
        match layout {
            Layout::Inline(_) => self.data = Data::Write,
            _ if value.inline_bytes() > 0 => self.data = Data::Clear,
            Layout::Striped(_) | Layout::Away(_) => {}
        }
        self.release(&value);
        value.layout = layout;
        self.rewrite(value);
    }

    /// Lets go nothing that the key refers to all the same: of what a composition once made that came too late, and of what made it anew,
    /// the stripes are the same.
    pub fn spare_what_stays(&mut self) {
        if self.freed.is_empty() {
            return;
        }
        let put = self.put.iter();
        let put = put.filter(|kept| !self.removed.contains(&kept.seq()));
        let is_put = |seq: u64| self.put.iter().any(|kept| kept.seq() == seq);
        let seen = self.list.iter().chain(&self.null);
        let seen = seen.filter(|kept| !is_put(kept.seq()));
        let values = put.chain(seen).filter_map(Kept::value);
        let values = values.chain(&self.head.current);
        let stays: HashSet<u128> = values
            .flat_map(Value::segments)
            .map(|segment| segment.id)
            .collect();
        self.freed.retain(|segment| !stays.contains(&segment.id));
    }

    fn discount(&mut self, value: &Value) {
        let gone = Usage::of(self.space, value.size);
        self.head.usage = self.head.usage.less(gone);
        self.release(value);
    }

    /// Where a value's bytes were, they are needed no more.
    fn release(&mut self, value: &Value) {
        self.freed.extend(value.segments());
        self.forgotten.extend(value.away());
    }

    fn drop_current(&mut self) {
        if let Some(value) = self.head.current.take() {
            if value.inline_bytes() > 0 {
                self.data = Data::Clear;
            }
            self.discount(&value);
        }
    }

    fn keep(&mut self, kept: Kept) {
        if kept.version() == VersionId::NULL {
            self.head.kept_null = Some(kept.seq());
        }
        self.head.kept = self.head.kept.saturating_add(1);
        self.list.insert(0, kept.clone());
        self.put.push(kept);
    }

    fn take_kept(&mut self, version: VersionId) -> Option<Kept> {
        let matches = |kept: &Kept| kept.version() == version;
        match self.list.iter().position(matches) {
            Some(at) => Some(self.list.remove(at)),
            None => self.null.take_if(|kept| matches(kept)),
        }
    }

    /// A kept version is gone for good.
    fn forget(&mut self, kept: &Kept) {
        self.removed.push(kept.seq());
        self.head.kept = self.head.kept.saturating_sub(1);
        self.end_null(kept.seq());
        match kept {
            Kept::Value(value) => self.discount(value),
            Kept::Marker { .. } => self.head.usage = self.head.usage.less(Usage::MARKER),
        }
    }

    fn end_null(&mut self, seq: u64) {
        if self.head.kept_null == Some(seq) {
            self.head.kept_null = None;
        }
    }
}
