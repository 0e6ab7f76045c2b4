//! Flow-control arithmetic, for streams and for the connection alike (RFC 9113 section 5.2). A send window is
//! what the peer allowed us; a receive window is what we allowed the peer, and the one that grows with a
//! quick reader.

use crate::base::limits;

use super::frame::LARGEST;

/// A sum of windows went past 2^31-1.
#[derive(Debug, PartialEq, Eq)]
pub struct Overflow;

/// The peer sent more than it was allowed.
#[derive(Debug, PartialEq, Eq)]
pub struct Exceeded;

/// Bytes that may still be sent; below zero after the peer lowered its initial window.
#[derive(Clone, Copy, Debug)]
pub struct SendWindow(i32);

impl SendWindow {
    pub fn new(bytes: u32) -> Self {
        Self(i32::try_from(bytes).unwrap_or(i32::MAX))
    }

    pub fn available(self) -> usize {
        usize::try_from(self.0).unwrap_or(0)
    }

    pub fn take(&mut self, length: usize) {
        self.0 = self.0.saturating_sub(i32::try_from(length).unwrap_or(i32::MAX));
    }

    /// Adds a WINDOW_UPDATE, or the difference of two initial windows.
    pub fn adjust(&mut self, difference: i64) -> Result<(), Overflow> {
        self.0 = i32::try_from(i64::from(self.0) + difference).map_err(|_| Overflow)?;
        Ok(())
    }
}

/// `announced` + bytes not yet taken by the reader + `returned` = `size`, always.
#[derive(Clone, Copy, Debug)]
pub struct ReceiveWindow {
    /// What the peer may still send.
    announced: i32,
    size: u32,
    /// Taken by the reader, not yet told to the peer.
    returned: u32,
    /// When credit was last given, milliseconds of the connection's clock.
    credited_ms: u32,
}

impl ReceiveWindow {
    pub fn new(size: u32, now_ms: u32) -> Self {
        let size = size.min(LARGEST);
        Self { announced: i32::try_from(size).unwrap_or(i32::MAX), size, returned: 0, credited_ms: now_ms }
    }

    /// Charges a frame's whole payload, padding included.
    pub fn arrived(&mut self, length: u32) -> Result<(), Exceeded> {
        let left = i64::from(self.announced) - i64::from(length);
        if left < 0 && length > 0 {
            return Err(Exceeded);
        }
        self.announced = i32::try_from(left).map_err(|_| Exceeded)?;
        Ok(())
    }

    /// Bytes delivered that the reader has not taken.
    pub fn unread(&self) -> u32 {
        let unread = i64::from(self.size) - i64::from(self.announced) - i64::from(self.returned);
        u32::try_from(unread).unwrap_or(0)
    }

    /// The reader took `length` bytes. Gives the WINDOW_UPDATE that is due, if one is: half a window at a
    /// time. The window doubles, up to `largest`, when its half went by quickly and little of it still waits.
    pub fn consumed(&mut self, length: u32, largest: u32, now_ms: u32) -> Option<u32> {
        self.returned += length.min(self.unread());
        if self.returned == 0 || self.returned < self.size / 2 {
            return None;
        }
        let quick = now_ms.wrapping_sub(self.credited_ms) < limits::WINDOW_GROWTH_MS;
        let growth = if quick && self.unread() <= self.size / 4 {
            largest.min(LARGEST).saturating_sub(self.size).min(self.size)
        } else {
            0
        };
        self.size += growth;
        self.credited_ms = now_ms;
        let increment = self.returned + growth;
        self.returned = 0;
        let announced = i64::from(self.announced) + i64::from(increment);
        self.announced = i32::try_from(announced).unwrap_or(i32::MAX);
        Some(increment)
    }

    /// Our own initial window took effect: the peer has acknowledged it.
    pub fn adjust(&mut self, difference: i64) {
        let size = i64::from(self.size) + difference;
        self.size = u32::try_from(size).unwrap_or(0).min(LARGEST);
        let announced = i64::from(self.announced) + difference;
        self.announced = i32::try_from(announced).unwrap_or(i32::MAX);
    }

    #[cfg(test)]
    pub fn announced(&self) -> i32 {
        self.announced
    }

    #[cfg(test)]
    pub fn size(&self) -> u32 {
        self.size
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_send_window_may_go_below_zero_but_not_past_the_largest() {
        let mut window = SendWindow::new(65_535);
        window.take(65_000);
        window.adjust(-60_000).unwrap();
        assert_eq!(window.available(), 0);
        window.adjust(60_000).unwrap();
        assert_eq!(window.available(), 535);
        assert_eq!(window.adjust(i64::from(LARGEST)), Err(Overflow));
        assert_eq!(window.available(), 535);
        window.adjust(i64::from(LARGEST) - 535).unwrap();
        assert_eq!(window.available(), LARGEST as usize);
    }

    #[test]
    fn credit_comes_by_halves_and_never_for_bytes_that_never_came() {
        let mut window = ReceiveWindow::new(1_000, 0);
        assert_eq!(window.consumed(5_000, 1_000, 0), None);
        window.arrived(600).unwrap();
        assert_eq!(window.arrived(401), Err(Exceeded));
        assert_eq!(window.consumed(499, 1_000, 0), None);
        assert_eq!(window.consumed(1, 1_000, 0), Some(500));
        assert_eq!((window.announced(), window.unread()), (900, 100));
        assert_eq!(window.consumed(9_999, 1_000, 0), None);
        assert_eq!(window.unread(), 0);
    }

    #[test]
    fn it_grows_for_a_quick_reader_only() {
        let mut quick = ReceiveWindow::new(1_000, 0);
        quick.arrived(1_000).unwrap();
        assert_eq!(quick.consumed(1_000, 3_000, 10), Some(2_000));
        quick.arrived(2_000).unwrap();
        assert_eq!(quick.consumed(2_000, 3_000, 20), Some(3_000));
        assert_eq!(quick.size(), 3_000);
        let mut late = ReceiveWindow::new(1_000, 0);
        late.arrived(1_000).unwrap();
        assert_eq!(late.consumed(1_000, 3_000, limits::WINDOW_GROWTH_MS), Some(1_000));
        let mut behind = ReceiveWindow::new(1_000, 0);
        behind.arrived(1_000).unwrap();
        assert_eq!(behind.consumed(500, 3_000, 0), Some(500));
        assert_eq!(behind.size(), 1_000);
    }

    #[test]
    fn a_smaller_initial_window_leaves_the_peer_in_debt() {
        let mut window = ReceiveWindow::new(65_535, 0);
        window.arrived(60_000).unwrap();
        window.adjust(16_384 - 65_535);
        assert_eq!(window.arrived(1), Err(Exceeded));
        assert_eq!(window.arrived(0), Ok(()));
        assert_eq!(window.consumed(60_000, 16_384, 0), Some(60_000));
        assert_eq!(window.announced(), 16_384);
    }
}
