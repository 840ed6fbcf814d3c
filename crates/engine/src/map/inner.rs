//! Changed inner nodes: their children may be in memory only.

use forebay_format::{FANOUT, MapNode, MapValue};
use triomphe::Arc;

use super::cache::NodeCache;
use super::index::{At, NodeIndex};
use super::need::NeedNode;
use super::node::{Base, Node, Stored, entries_without_base};

/// The subtree at an entry of an inner node, or at the root.
#[derive(Debug, Clone, Default)]
pub(super) enum Child {
    /// All blocks below are holes.
    #[default]
    Hole,
    /// All blocks below are allocated zeroes.
    Zero,
    /// A node that is on the store, and possibly in the cache.
    Stored(At),
    /// A leaf in memory.
    Leaf(Node),
    /// An inner node in memory.
    Inner(Arc<Inner>),
}

impl Child {
    /// Returns the child that a stored entry describes.
    pub(super) fn from_value(value: MapValue) -> Child {
        match value {
            MapValue::Hole => Child::Hole,
            MapValue::Zero => Child::Zero,
            MapValue::At(at) => Child::Stored(at.into()),
        }
    }

    /// The entry in its stored form; `None` while the child is only in memory.
    pub(super) fn to_value(&self) -> Option<MapValue> {
        Some(match self {
            Child::Hole => MapValue::Hole,
            Child::Zero => MapValue::Zero,
            Child::Stored(at) => MapValue::At(at.get()),
            Child::Leaf(node) => MapValue::At(node.stored()?),
            Child::Inner(node) => MapValue::At(node.stored.get()?),
        })
    }

    /// Whether every block below is `value` (a hole or zeroes), judged without loading nodes.
    pub(super) fn is_all(&self, value: MapValue) -> bool {
        match self {
            Child::Hole => value == MapValue::Hole,
            Child::Zero => value == MapValue::Zero,
            _ => false,
        }
    }

    /// Whether two children are the same stored node, or the same node in memory.
    pub(super) fn is_same(&self, other: &Child) -> bool {
        match (self, other) {
            (Child::Leaf(a), Child::Leaf(b)) if a.ptr() == b.ptr() => true,
            (Child::Inner(a), Child::Inner(b)) if Arc::ptr_eq(a, b) => true,
            _ => self.to_value().is_some_and(|value| Some(value) == other.to_value()),
        }
    }

    /// Makes the child a changeable inner node, and returns it. A stored or shared node is copied.
    pub(super) fn own_inner(&mut self, cache: &NodeCache, place: NodeIndex) -> Result<&mut Inner, NeedNode> {
        let fresh = match self {
            Child::Hole => Some(Inner::new(place, |_| Child::Hole)),
            Child::Zero => Some(Inner::new(place, |_| Child::Zero)),
            Child::Stored(at) => {
                let node = cache.get(NeedNode::child(at.get(), place))?;
                Some(Inner::new(place, |i| Child::from_value(node.own(i).unwrap_or_default())))
            }
            Child::Inner(node) if node.is_unique() => None,
            Child::Inner(node) => {
                let children = &node.children;
                Some(Inner::new(place, |i| children[usize::from(i)].clone()))
            }
            Child::Leaf(_) => unreachable!("a leaf above level 0"),
        };
        if let Some(fresh) = fresh {
            *self = Child::Inner(Arc::new(fresh));
        }
        let Child::Inner(node) = self else { unreachable!("made above") };
        let node = Arc::get_mut(node).expect("unique: &mut self excludes concurrent clones");
        node.stored.clear();
        Ok(node)
    }
}

/// An inner node with children in memory.
#[derive(Debug)]
pub(crate) struct Inner {
    pub(super) place: NodeIndex,
    pub(super) stored: Stored,
    pub(super) children: [Child; FANOUT],
}

impl Inner {
    pub(super) fn new(place: NodeIndex, mut child: impl FnMut(u8) -> Child) -> Inner {
        let stored = Stored::default();
        Inner { place, stored, children: std::array::from_fn(|i| child(i as u8)) }
    }

    /// The entries in their stored form; all children must be stored.
    fn values(&self) -> impl Iterator<Item = (u8, MapValue)> + '_ {
        let value = |c: &Child| c.to_value().expect("children are stored before their parent");
        (0..=u8::MAX).zip(self.children.iter().map(value))
    }

    /// Returns the node in its stored layout.
    pub(super) fn to_format(&self) -> MapNode {
        let entries = entries_without_base(self.values());
        MapNode { level: self.place.level(), index: self.place.index(), entries }
    }

    /// The node in its packed form, without the children.
    pub(super) fn to_node(&self) -> Node {
        let places: Vec<_> = self.values().filter(|(_, v)| *v != MapValue::Hole).collect();
        Node::build(self.place, Base::None, &places)
    }
}

const _: () = assert!(size_of::<Child>() == 16);
