#pragma once

#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "backend/ops.hpp"
#include "host/gemm.hpp"
#include "host/isa.hpp"
#include "host/thread_pool.hpp"

namespace muonrt::host {

/// The ops on the host. Each op enqueues tasks. A task divides its loop among the threads of the
/// pool without affecting the results. Supported dtypes are f32 and bf16, and also f16 for
/// iterates. With other dtypes, a task fails with NOT_SUPPORTED.
class HostOps final : public Ops {
 public:
  /// @param device  allocates the memory for reserve(), and must outlive this object.
  HostOps(Device& device, int threads, const TileKernel& kernel, Isa isa);

  /// Returns the name, version and instruction set of the library that computes products.
  std::string kernel_identity() const { return shared_.scratch.kernel().identity(); }

  int64_t leading_dimension(int64_t cols, DType dtype) const override {
    return HostRules().leading_dimension(cols, dtype);
  }
  LaunchLimits launch_limits() const override { return HostRules().launch_limits(); }
  void reserve(int64_t m, int64_t n, int64_t k, DType dtype) override;

  void fill(Stream& stream, void* memory, unsigned char value, int64_t bytes) override;
  void copy(Stream& stream, void* to, const void* from, int64_t bytes) override;
  void pack_direction(Stream& stream, std::span<const ShardBlock> blocks, const StepTables& tables,
                      TypedBuffer message, Findings* findings) override;
  void pack_partial_grad(Stream& stream, std::span<const ShardBlock> blocks,
                         const ParamView* params, TypedBuffer message, Findings* findings) override;
  void accumulate(Stream& stream, std::span<const ShardBlock> blocks, float* sums,
                  ConstTypedBuffer message, bool first) override;
  void pack_adamw(Stream& stream, std::span<const ShardBlock> blocks, const StepTables& tables,
                  TypedBuffer message, Findings* findings) override;
  void scan(Stream& stream, std::span<const int32_t> list, const ParamView* params,
            Findings* findings) override;
  void check_masters(Stream& stream, std::span<const int32_t> list, const ParamView* params,
                     Findings* findings) override;
  void unpack(Stream& stream, std::span<const MatrixBlock> blocks,
              std::span<const OwnedMatrix> owned, const MatrixBatch* matrices,
              ConstTypedBuffer message) override;
  void pack(Stream& stream, std::span<const MatrixBlock> blocks, std::span<const OwnedMatrix> owned,
            const MatrixBatch* matrices, TypedBuffer message, Findings* findings) override;
  void normalize(Stream& stream, const MatrixBatch& in, const MatrixBatch& out,
                 const Normalization& how, Findings* findings) override;
  void scale_rows(Stream& stream, const MatrixBatch& gram, const MatrixBatch& x,
                  const MatrixBatch& factors, const AolRule& rule) override;
  void multiply(Stream& stream, std::span<const Product> products) override;
  bool multiply_by_matrix(Stream& stream, std::span<const Product> products) override;
  void add_identity(Stream& stream, const MatrixBatch& x, float gamma) override;
  void cast_vote(Stream& stream, Vote* vote, const Findings* findings, int64_t fingerprint,
                 int64_t orthogonalized, bool local_ok) override;
  void commit_muon(Stream& stream, std::span<const ShardBlock> blocks, const StepTables& tables,
                   ConstTypedBuffer message, const CommitCondition& condition) override;
  void commit_update(Stream& stream, std::span<const ShardBlock> blocks, const StepTables& tables,
                     ConstTypedBuffer message, const CommitCondition& condition) override;
  void commit_momentum(Stream& stream, std::span<const ShardBlock> blocks, const StepTables& tables,
                       const CommitCondition& condition) override;
  void commit_values(Stream& stream, std::span<const ShardBlock> blocks, const ParamView* params,
                     ConstTypedBuffer message, const CommitCondition& condition) override;
  void commit_adamw(Stream& stream, std::span<const int32_t> list,
                    std::span<const ShardBlock> blocks, const StepTables& tables,
                    const CommitCondition& condition) override;
  void normuon(Stream& stream, const MatrixBatch& matrices, std::span<const NormuonState> states,
               const StepTables& tables) override;
  void commit_normuon(Stream& stream, std::span<const NormuonState> states, const ParamView* params,
                      const CommitCondition& condition) override;
  void sum_squares(Stream& stream, std::span<const int32_t> list, const ParamView* params,
                   int64_t* sums) override;
  void scale_gradients(Stream& stream, const GradientFactors& factors, const NormClip& clip,
                       const GradientTables& tables, Findings* findings, double* norm) override;
  void take_logits(Stream& stream, const float* from, float* to, int64_t count) override;
  void clip_heads(Stream& stream, const QkClip& clip, Findings* findings) override;
  void tally(Stream& stream, const MatrixBatch& x, const uint16_t* low, Tally* tallies) override;
  void lanczos(Stream& stream, const MatrixBatch& x, float* workspace, Lanczos* out) override;
  void hash_memory(Stream& stream, const void* memory, int64_t bytes, uint64_t* sum) override;

 private:
  using Body = FunctionRef<void(int64_t, int)>;
  using Range = FunctionRef<void(int64_t, int64_t)>;

  /// Calls body(index, thread) for each index in [0, count), on the threads of the pool. If another
  /// stream is using the pool, makes all calls on the calling thread.
  void spread(int64_t count, Body body);
  /// Calls body(begin, end) for parts of [0, elements). Each part is large enough to justify waking
  /// a thread.
  void spread_range(int64_t elements, Range body);
  void normuon_of(const MatrixBatch& matrix, const NormuonState& state, float beta2);
  /// Packs partial gradients if kPartialGrad is true; otherwise packs directions.
  template <bool kPartialGrad>
  void pack_gradients(Stream& stream, std::span<const ShardBlock> blocks, const StepTables& tables,
                      TypedBuffer message, Findings* findings);
  /// Commits Muon's momentum, its weights, or both.
  template <bool kMomentum, bool kWeights>
  void commit(Stream& stream, std::span<const ShardBlock> blocks, const StepTables& tables,
              ConstTypedBuffer message, const CommitCondition& condition);

  /// The objects and the workspace that matrix products reuse.
  struct Products {
    explicit Products(const TileKernel& kernel) : scratch(kernel) {}
    void reserve(Device& device, int threads, int64_t m, int64_t n, int64_t k, DType dtype);
    GemmScratch scratch;
    Buffer memory;
  };
  /// The objects of one thread for batches of small products.
  struct Worker {
    explicit Worker(const TileKernel& kernel) : products(kernel) {}
    ThreadPool pool{1};
    Products products;
  };

  void multiply_now(const Product& product);
  /// Computes matrix `index` on one thread. The product must be small.
  void multiply_one(const Product& product, int64_t index, int thread);

  const Isa isa_;
  Device& device_;
  std::mutex pool_mutex_;  // protects pool_, shared_ and workers_; one task at a time uses them
  ThreadPool pool_;
  Products shared_;
  std::vector<std::unique_ptr<Worker>> workers_;  // one per thread; created by reserve() if needed
};

}  // namespace muonrt::host
