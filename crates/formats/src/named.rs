//! Enums whose members have names.

/// An enum whose members are said with their names: it has all of them, the name of each, and the member of a name.
#[macro_export]
macro_rules! named {
    ($(#[$meta:meta])* pub enum $enum:ident { $($(#[$doc:meta])* $member:ident = $name:literal,)* }) => {
        $(#[$meta])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum $enum {
            $($(#[$doc])* $member,)*
        }

        impl $enum {
            /// All members.
            pub const ALL: [Self; [$($name),*].len()] = [$(Self::$member),*];

            /// The name of the member.
            pub const fn name(self) -> &'static str {
                match self { $(Self::$member => $name,)* }
            }

            /// The member of this name.
            fn named(name: &str) -> Option<Self> {
                Self::ALL.into_iter().find(|one| one.name() == name)
            }
        }

        impl std::fmt::Display for $enum {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(self.name())
            }
        }
    };
}
