//! Room that a burst left in what grows in one piece.

use slab::Slab;

/// Gives back the end of a slab that is mostly empty; what is in use keeps its place.
pub(super) fn shrink<T>(slab: &mut Slab<T>) {
    const MOSTLY: usize = 4;
    if slab.len() < slab.capacity() / MOSTLY {
        slab.shrink_to_fit();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_in_use_keeps_its_place() {
        let mut slab: Slab<usize> = (0..1_000).map(|number| (number, number)).collect();
        for number in (0..1_000).filter(|number| *number != 10) {
            slab.remove(number);
        }
        shrink(&mut slab);
        assert!(slab.capacity() < 100 && slab.get(10) == Some(&10));
        slab.remove(10);
        shrink(&mut slab);
        assert_eq!(slab.capacity(), 0);
    }
}
