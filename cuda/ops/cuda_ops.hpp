#pragma once

#include <memory>

#include "backend/ops.hpp"
#include "cuda/ops/list_cache.hpp"
#include "cuda/ops/list_sources.hpp"
#include "cuda/products/vendor_products.hpp"
#include "cuda/symmetric/symmetric_products.hpp"

namespace muonrt::cuda {

class CudaDevice;

/// The ops of a step on a GPU. Each op enqueues kernels on the stream and returns. The results of
/// elementwise ops and of the normalization are bitwise identical to the results on the host; the
/// results of products are not. The supported dtypes are f32 and bf16, and also f16 for iterates.
/// Errors: NOT_SUPPORTED for other dtypes.
class CudaOps final : public Ops {
 public:
  /// @param vendor  may be null; then the naive kernels compute the products.
  CudaOps(CudaDevice& device, std::unique_ptr<VendorProducts> vendor, const CudaSettings& settings);

  /// Returns the names and versions of the libraries and kernels that compute matrix products.
  std::string product_identity() const;

  int64_t leading_dimension(int64_t cols, DType dtype) const override {
    return CudaRules().leading_dimension(cols, dtype);
  }
  LaunchLimits launch_limits() const override {
    return CudaRules(symmetric_ != nullptr).launch_limits();
  }
  void reserve(int64_t m, int64_t n, int64_t k, DType dtype) override;

  void fill(Stream& stream, void* memory, unsigned char value, int64_t bytes) override;
  /// Does not block when it copies at most kInlineBytes from unshared host memory: it reads the
  /// bytes before it returns. Errors: INTERNAL if `to` is unshared host memory.
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
  /// Calls launcher(table, given..., handle). `table` is the device table of the blocks, and
  /// `handle` is the cudaStream_t of `stream`.
  template <class Launcher, class... Given>
  void launch_on(Stream& stream, std::span<const ShardBlock> blocks, Launcher launcher,
                 const Given&... given);
  bool vendor_computes(const Product& product) const;
  bool own_computes(const Product& product) const;
  void multiply_alone(const Product& product, cudaStream_t stream);

  CudaDevice& device_;
  std::unique_ptr<VendorProducts> vendor_;
  std::unique_ptr<SymmetricProducts> symmetric_;  // if null, vendor_ or the naive kernels compute
                                                  // the products
  Buffer normalize_scratch_;
  ListCache<ShardBlockSource> blocks_;
  ListCache<MatrixBlockSource> unpacked_, packed_;
  ListCache<ParamSource> params_;
};

}  // namespace muonrt::cuda
