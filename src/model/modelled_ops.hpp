#pragma once

#include "backend/ops.hpp"
#include "model/modelled_device.hpp"
#include "plan/machine/profile.hpp"

namespace muonrt {

/// Computes the time of each op from its products, or from the bytes that it reads and writes.
/// Reads block lists and parameter tables, but no tensors.
class ModelledOps final : public Ops {
 public:
  ModelledOps(ModelledDevice& device, const MachineProfile& profile, const MatrixRules& rules,
              int world)
      : device_(device), profile_(profile), rules_(rules), world_(world) {}

  int64_t leading_dimension(int64_t cols, DType dtype) const override {
    return rules_.leading_dimension(cols, dtype);
  }
  LaunchLimits launch_limits() const override { return rules_.launch_limits(); }
  void reserve(int64_t, int64_t, int64_t, DType) override {}

  void fill(Stream& stream, void*, unsigned char, int64_t bytes) override { pass(stream, bytes); }
  void copy(Stream& stream, void*, const void*, int64_t bytes) override { pass(stream, 2 * bytes); }
  void pack_direction(Stream&, std::span<const ShardBlock>, const StepTables&, TypedBuffer,
                      Findings*) override;
  void pack_partial_grad(Stream&, std::span<const ShardBlock>, const ParamView*, TypedBuffer,
                         Findings*) override;
  void accumulate(Stream&, std::span<const ShardBlock>, float*, ConstTypedBuffer,
                  bool first) override;
  void pack_adamw(Stream&, std::span<const ShardBlock>, const StepTables&, TypedBuffer,
                  Findings*) override;
  void scan(Stream&, std::span<const int32_t>, const ParamView*, Findings*) override;
  void check_masters(Stream&, std::span<const int32_t>, const ParamView*, Findings*) override;
  void unpack(Stream&, std::span<const MatrixBlock>, std::span<const OwnedMatrix>,
              const MatrixBatch*, ConstTypedBuffer) override;
  void pack(Stream&, std::span<const MatrixBlock>, std::span<const OwnedMatrix>, const MatrixBatch*,
            TypedBuffer, Findings*) override;
  void normalize(Stream&, const MatrixBatch& in, const MatrixBatch& out, const Normalization&,
                 Findings*) override;
  void scale_rows(Stream&, const MatrixBatch& gram, const MatrixBatch& x, const MatrixBatch&,
                  const AolRule&) override;
  using Ops::multiply;
  void multiply(Stream&, std::span<const Product>) override;
  void add_identity(Stream& stream, const MatrixBatch& x, float) override {
    pass(stream, 2 * x.count * x.rows * size_of(x.dtype));
  }
  void cast_vote(Stream& stream, Vote*, const Findings*, int64_t, int64_t, bool) override {
    pass(stream, sizeof(Vote));
  }
  void commit_muon(Stream&, std::span<const ShardBlock>, const StepTables&, ConstTypedBuffer,
                   const CommitCondition&) override;
  void commit_update(Stream&, std::span<const ShardBlock>, const StepTables&, ConstTypedBuffer,
                     const CommitCondition&) override;
  void commit_momentum(Stream&, std::span<const ShardBlock>, const StepTables&,
                       const CommitCondition&) override;
  void commit_values(Stream&, std::span<const ShardBlock>, const ParamView*, ConstTypedBuffer,
                     const CommitCondition&) override;
  void commit_adamw(Stream&, std::span<const int32_t>, std::span<const ShardBlock>,
                    const StepTables&, const CommitCondition&) override;
  void normuon(Stream&, const MatrixBatch&, std::span<const NormuonState>,
               const StepTables&) override;
  void commit_normuon(Stream&, std::span<const NormuonState>, const ParamView*,
                      const CommitCondition&) override;
  void sum_squares(Stream&, std::span<const int32_t>, const ParamView*, int64_t*) override;
  void scale_gradients(Stream& stream, const GradientFactors&, const NormClip&,
                       const GradientTables& tables, Findings*, double*) override {
    pass(stream, tables.param_count * 4);
  }
  void take_logits(Stream& stream, const float*, float*, int64_t count) override {
    pass(stream, 8 * count);
  }
  void clip_heads(Stream& stream, const QkClip& clip, Findings*) override {
    pass(stream, 4 * clip.rows);
  }
  void tally(Stream&, const MatrixBatch&, const uint16_t*, Tally*) override;
  void lanczos(Stream&, const MatrixBatch&, float*, Lanczos*) override;
  void hash_memory(Stream& stream, const void*, int64_t bytes, uint64_t*) override {
    pass(stream, bytes);
  }

 private:
  /// Appends a pass over memory.
  /// @param owned  True if the pass is over owned matrices, and not over shards.
  void pass(Stream& stream, int64_t bytes, PassKind kind = PassKind::kCopy, bool owned = false);
  /// Appends a pass between messages and matrices. Some of the matrices are stored transposed.
  void move(Stream& stream, std::span<const MatrixBlock> blocks, std::span<const OwnedMatrix> owned,
            const MatrixBatch* matrices, DType message);

  ModelledDevice& device_;
  const MachineProfile& profile_;
  const MatrixRules& rules_;
  int world_;
};

}  // namespace muonrt
