//! [`id_type!`](crate::id_type) and [`position_type!`](crate::position_type): numbers that must not be mixed.

/// Defines an identity: a number of its own type, which costs no more than the number.
///
/// The text after the type is the noun that `Display` puts before the number.
///
/// ```
/// sluice_collections::id_type! {
///     /// A drawer of a cabinet.
///     pub struct DrawerId(pub u32), "drawer ";
/// }
///
/// let drawer = DrawerId::new(3);
/// assert_eq!((drawer.get(), drawer.index()), (3, 3));
/// assert_eq!(drawer, DrawerId::from_index(3));
/// assert_eq!(drawer.to_string(), "drawer 3");
/// ```
#[macro_export]
macro_rules! id_type {
    ($(#[$meta:meta])* $vis:vis struct $name:ident($inner:vis $int:ty), $noun:literal;) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[repr(transparent)]
        $vis struct $name($inner $int);

        #[allow(dead_code, reason = "every type has the same functions")]
        impl $name {
            /// The one with this number.
            #[inline]
            $vis const fn new(number: $int) -> $name {
                $name(number)
            }

            /// The one with this index of a table.
            #[inline]
            $vis fn from_index(index: usize) -> $name {
                debug_assert!(<$int>::try_from(index).is_ok(), "{index} is too large");
                $name(index as $int)
            }

            /// Returns the number.
            #[inline]
            $vis const fn get(self) -> $int {
                self.0
            }

            /// Returns the index in a table, which must fit memory.
            #[inline]
            $vis fn index(self) -> usize {
                debug_assert!(usize::try_from(self.0).is_ok(), "{} is no index", self.0);
                self.0 as usize
            }
        }

        impl $crate::serde::Serialize for $name {
            fn serialize<S: $crate::serde::Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
                $crate::serde::Serialize::serialize(&self.0, to)
            }
        }

        impl<'de> $crate::serde::Deserialize<'de> for $name {
            fn deserialize<D: $crate::serde::Deserializer<'de>>(from: D) -> Result<$name, D::Error> {
                $crate::serde::Deserialize::deserialize(from).map($name)
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str($noun)?;
                std::fmt::Display::fmt(&self.0, f)
            }
        }
    };
}

/// Defines a position: an identity whose neighbors are found by adding a count.
///
/// ```
/// sluice_collections::position_type! {
///     /// A row of a table.
///     pub struct Row(u64), "row ";
/// }
///
/// let first = Row::new(7);
/// assert_eq!((first + 2).get(), 9);
/// assert_eq!(Row::new(9) - first, 2);
/// assert!(first.run(2).eq([Row::new(7), Row::new(8)]));
/// ```
#[macro_export]
macro_rules! position_type {
    ($(#[$meta:meta])* $vis:vis struct $name:ident($inner:vis $int:ty), $noun:literal;) => {
        $crate::id_type! {
            $(#[$meta])*
            $vis struct $name($inner $int), $noun;
        }

        #[allow(dead_code, reason = "every type has the same functions")]
        impl $name {
            /// The `count` positions from this one on.
            #[inline]
            $vis fn run(
                self,
                count: $int,
            ) -> impl DoubleEndedIterator<Item = $name> + Clone + use<> {
                (self.0..self.0 + count).map($name)
            }

            /// This position and all that follow it.
            #[inline]
            $vis fn ascending(self) -> impl Iterator<Item = $name> + Clone + use<> {
                (self.0..).map($name)
            }
        }

        impl std::ops::Add<$int> for $name {
            type Output = $name;

            #[inline]
            fn add(self, count: $int) -> $name {
                $name(self.0 + count)
            }
        }

        impl std::ops::AddAssign<$int> for $name {
            #[inline]
            fn add_assign(&mut self, count: $int) {
                self.0 += count;
            }
        }

        impl std::ops::Sub for $name {
            type Output = $int;

            #[inline]
            fn sub(self, earlier: $name) -> $int {
                self.0 - earlier.0
            }
        }
    };
}
