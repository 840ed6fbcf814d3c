//! Entries of the log in words.

/// A human-readable description of a change to the catalogue.
pub(crate) fn describe(op: &forebay_format::CatalogueOp) -> String {
    use forebay_format::{CatalogueOp as Op, Mark};
    match op {
        Op::Create { disk, from: Some(from) } => {
            format!("create {} '{}' from {}", disk.id.0, disk.name, from.0)
        }
        Op::Create { disk, from: None } => format!("create {} '{}'", disk.id.0, disk.name),
        Op::Delete { disk } => format!("delete {}", disk.0),
        Op::Copy { disk, from } => format!("copy {} from {}", disk.0, from.0),
        Op::Resize { disk, size } => format!("resize {} to {size} bytes", disk.0),
        Op::Mark { disk, mark: Mark::None } => format!("unmark {}", disk.0),
        Op::Mark { disk, mark: Mark::Local } => format!("mark {}: local clients", disk.0),
        Op::Mark { disk, mark: Mark::Remote } => format!("mark {}: remote clients", disk.0),
        Op::Mark { disk, mark: Mark::Lost { .. } } => format!("mark {}: writes are lost", disk.0),
        Op::Update { disk } => format!("update {} '{}'", disk.id.0, disk.name),
        Op::Attach { disk, root } => format!("attach {} to the image at {}", disk.0, root.addr.segment),
        Op::CopyRange { disk, block, from, source_block, count } => {
            format!("copy {count} blocks to {} at {block} from {} at {source_block}", disk.0, from.0)
        }
    }
}
