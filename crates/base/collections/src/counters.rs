//! [`counters!`](crate::counters): sums and differences of structs of counters.

/// Implements `plus` and `since` for a struct of counters. All fields must be listed, or the
/// struct literal does not compile. Fields after `latest` are levels, not counters: `since` returns
/// the later reading; such a struct has no `plus`.
///
/// ```
/// #[derive(Debug, PartialEq)]
/// struct Traffic { reads: u64, writes: u64 }
/// sluice_collections::counters!(Traffic { reads, writes });
/// let sum = Traffic { reads: 1, writes: 2 }.plus(&Traffic { reads: 3, writes: 4 });
/// assert_eq!(sum, Traffic { reads: 4, writes: 6 });
/// assert_eq!(sum.since(&Traffic { reads: 1, writes: 2 }), Traffic { reads: 3, writes: 4 });
/// ```
#[macro_export]
macro_rules! counters {
    ($name:ident { $($counter:ident),* $(,)? }) => {
        impl $name {
            /// Returns the sums of two sets of counters.
            #[must_use]
            pub fn plus(&self, other: &$name) -> $name {
                $name { $($counter: self.$counter + other.$counter),* }
            }
        }

        $crate::counters!($name { $($counter),*; latest });
    };
    ($name:ident { $($counter:ident),*; latest $($level:ident),* $(,)? }) => {
        impl $name {
            /// Returns the differences to an earlier reading.
            #[must_use]
            pub fn since(&self, earlier: &$name) -> $name {
                $name {
                    $($counter: self.$counter - earlier.$counter,)*
                    $($level: self.$level,)*
                }
            }
        }
    };
}
