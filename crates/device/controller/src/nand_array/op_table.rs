//! [`OpTable`]: the operations in flight and their parts on parallel units.

use collections::Slab;
use serde::{Deserialize, Serialize};

use crate::check::{DriveCheck, DrivePart, DriveViolation};
use crate::nand_array::operation::{AddressList, NandOp, NandOpKind, OpOwner, PuOp};

/// Operations and their parts, by index. A freed index is reused.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(super) struct OpTable {
    ops: Slab<NandOp>,
    /// The operation that began last.
    last: u32,
    pu_ops: Slab<PuOp>,
}

impl OpTable {
    /// Adds an operation without parts.
    pub(super) fn begin(&mut self, owner: OpOwner, kind: NandOpKind) -> u32 {
        self.last = match self.ops.take() {
            Some(id) => {
                let op = &mut self.ops[id];
                (op.owner, op.kind, op.pu_ops_left, op.failed) = (owner, kind, 0, 0);
                (op.status, op.addresses.count, op.unit) = (nvme::Status::SUCCESS, 0, 0);
                id
            }
            None => self.ops.insert(NandOp {
                owner,
                kind,
                unit: 0,
                pu_ops_left: 0,
                failed: 0,
                status: nvme::Status::SUCCESS,
                addresses: AddressList::default(),
            }),
        };
        self.last
    }

    /// Returns the operation that began last.
    pub(super) fn last(&self) -> u32 {
        self.last
    }

    /// Removes an operation. It stays readable until its index is reused.
    #[inline]
    pub(super) fn end(&mut self, id: u32) {
        self.ops.release(id);
    }

    #[inline]
    pub(super) fn op(&self, id: u32) -> &NandOp {
        &self.ops[id]
    }

    #[inline]
    pub(super) fn op_mut(&mut self, id: u32) -> &mut NandOp {
        &mut self.ops[id]
    }

    /// Adds a part of an operation.
    #[inline]
    pub(super) fn begin_pu_op(&mut self, part: PuOp) -> u32 {
        self.ops[part.op].pu_ops_left += 1;
        self.pu_ops.insert(part)
    }

    /// Removes and returns a part. Its operation counts it until
    /// [`NandArray::on_pu_op_complete`](super::NandArray).
    #[inline]
    pub(super) fn end_pu_op(&mut self, id: u32) -> &PuOp {
        self.pu_ops.release(id);
        &self.pu_ops[id]
    }

    #[inline]
    pub(super) fn pu_op(&self, id: u32) -> &PuOp {
        &self.pu_ops[id]
    }

    #[inline]
    pub(super) fn pu_op_mut(&mut self, id: u32) -> &mut PuOp {
        &mut self.pu_ops[id]
    }

    /// Returns all parts by index, ended ones included.
    #[inline]
    pub(super) fn pu_ops(&self) -> &Slab<PuOp> {
        &self.pu_ops
    }

    /// Returns whether no operation is in flight.
    pub(super) fn is_idle(&self) -> bool {
        self.ops.in_use() == 0
    }

    /// Removes everything, at a power cut.
    pub(super) fn clear(&mut self) {
        self.ops.clear();
        self.pu_ops.clear();
    }

    /// Compares the parts with those of the parallel units, `placed`, and the operations with their
    /// parts; `completed` are the operations whose owners have not been notified.
    ///
    /// # Errors
    /// The first violation.
    pub(super) fn check_invariants(
        &self,
        mut placed: Vec<u32>,
        completed: impl Iterator<Item = u32>,
    ) -> Result<(), DriveViolation> {
        let check = |index| DriveCheck { part: DrivePart::NandArray, subject: "operation", index };
        placed.sort_unstable();
        let usage = self.pu_ops.usage();
        let in_use = (0..).zip(&usage).filter(|(_, is_in_use)| **is_in_use);
        let live: Vec<u32> = in_use.map(|(id, _)| id).collect();
        check(0).equal("every part in flight is in one place of a parallel unit", live, placed)?;
        let mut parts = vec![0; self.ops.len()];
        for (part, _) in self.pu_ops.iter().zip(usage).filter(|(_, is_in_use)| *is_in_use) {
            parts[part.op as usize] += 1;
        }
        let (completed, usage) = (completed.collect::<Vec<u32>>(), self.ops.usage());
        for (id, (op, parts)) in (0..).zip(self.ops.iter().zip(parts)) {
            let is_free = !usage[id as usize];
            check(id).equal("the parts of an operation are counted", parts, op.pu_ops_left)?;
            let is_over = is_free || completed.contains(&id);
            check(id).equal("an operation without parts is over", parts == 0, is_over)?;
        }
        Ok(())
    }

    /// Frees a part that is in flight.
    #[cfg(test)]
    pub(super) fn break_free_list(&mut self) {
        self.pu_ops.release(0);
    }
}
