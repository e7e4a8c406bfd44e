#include "cuda/ops/cuda_ops.hpp"

#include "backend/op_checks.hpp"
#include "base/error.hpp"
#include "cuda/device/cuda_device.hpp"
#include "cuda/device/guard.hpp"

namespace muonrt::cuda {

namespace {

void check_dtype(const char* what, DType dtype) {
  MUONRT_REQUIRE(dtype == DType::kF32 || dtype == DType::kBF16, Status::kNotSupported, what,
                 " has dtype ", name_of(dtype),
                 ", but CUDA computes only f32 and bf16; convert it");
}

/// Checks the dtype of an operand of Newton-Schulz products. The dtype may also be f16.
void check_iterate(const char* what, DType dtype) {
  if (dtype != DType::kF16) check_dtype(what, dtype);
}

bool empty(const MatrixBatch& m) { return m.count == 0 || m.rows == 0 || m.cols == 0; }

bool nothing_to_multiply(const Product& p) { return p.a.cols == 0 || p.alpha == 0.0f; }

void check_product(const Product& p) {
  const MatrixBatch &a = p.a, &b = p.b, &c = p.c, &d = p.d;
  const int64_t b_rows = p.transpose_b ? b.cols : b.rows, b_cols = p.transpose_b ? b.rows : b.cols;
  MUONRT_CHECK_INTERNAL(a.rows == c.rows && b_cols == c.cols && a.cols == b_rows, "product of ",
                        a.rows, " x ", a.cols, " and ", b_rows, " x ", b_cols, " into ", c.rows,
                        " x ", c.cols);
  MUONRT_CHECK_INTERNAL(
      a.count == c.count && b.count == c.count &&
          (d.data == nullptr ||
           (d.count == c.count && d.rows == c.rows && d.cols == c.cols && d.data != c.data)),
      "product of batches of ", a.count, ", ", b.count, " and ", d.count, " into ", c.count);
  MUONRT_CHECK_INTERNAL(empty(c) || (c.data != a.data && c.data != b.data),
                        "product into one of its factors");
  MUONRT_CHECK_INTERNAL(!p.symmetric || c.rows == c.cols, "symmetric result of ", c.rows, " x ",
                        c.cols);
  check_iterate("matrix product: A", a.dtype);
  check_iterate("matrix product: B", b.dtype);
  check_iterate("matrix product: C", c.dtype);
  check_iterate("matrix product: D", d.dtype);
}

}  // namespace

CudaOps::CudaOps(CudaDevice& device, std::unique_ptr<VendorProducts> vendor,
                 const CudaSettings& settings)
    : device_(device),
      vendor_(std::move(vendor)),
      normalize_scratch_(device, normalize_scratch_bytes()),
      blocks_(device, device.streams()),
      unpacked_(device, device.streams()),
      packed_(device, device.streams()),
      params_(device, device.streams()) {
  if (settings.symmetric != SymmetricProvider::kVendor)
    symmetric_ = std::make_unique<SymmetricProducts>(device, device.sms() - settings.reserved_sms,
                                                     settings.sm90, settings.reserved_sms > 0);
}

std::string CudaOps::product_identity() const {
  const std::string others = vendor_ ? vendor_->identity() : "naive products";
  return symmetric_ ? cat(others, ", ", symmetric_->identity()) : others;
}

void CudaOps::reserve(int64_t m, int64_t n, int64_t k, DType dtype) {
  if (m == 0 || n == 0 || k == 0) return;
  const DeviceGuard guard(device_.index());
  if (vendor_) vendor_->reserve(m, n, k, dtype);
}

void CudaOps::fill(Stream& stream, void* memory, unsigned char value, int64_t bytes) {
  if (bytes == 0) return;
  const DeviceGuard guard(device_.index());
  MUONRT_CUDA(cudaMemsetAsync(memory, value, static_cast<size_t>(bytes), handle_of(stream)));
}

void CudaOps::copy(Stream& stream, void* to, const void* from, int64_t bytes) {
  if (bytes == 0) return;
  const DeviceGuard guard(device_.index());
  const cudaStream_t handle = handle_of(stream);
  const MemoryKind from_kind = device_.kind_of(from), to_kind = device_.kind_of(to);
  MUONRT_CHECK_INTERNAL(is_reached(to_kind), "copy of ", bytes,
                        " bytes to memory that the device cannot access");
  MUONRT_CHECK_INTERNAL(from_kind != MemoryKind::kElsewhere, "copy of ", bytes,
                        " bytes from memory of another device, or of none");
  if (from_kind == MemoryKind::kHost && bytes <= kInlineBytes)
    return write_inline(to, from, bytes, handle);
  // Between two addresses in host memory, cudaMemcpyAsync would copy synchronously.
  if (from_kind == MemoryKind::kShared && to_kind == MemoryKind::kShared)
    return copy_by_kernel(to, from, bytes, handle);
  MUONRT_CUDA(cudaMemcpyAsync(to, from, static_cast<size_t>(bytes), cudaMemcpyDefault, handle));
}

template <class Launcher, class... Given>
void CudaOps::launch_on(Stream& stream, std::span<const ShardBlock> blocks, Launcher launcher,
                        const Given&... given) {
  const DeviceGuard guard(device_.index());
  const cudaStream_t handle = handle_of(stream);
  launcher(blocks_.find(blocks.data(), handle, blocks), given..., handle);
}

void CudaOps::pack_direction(Stream& stream, std::span<const ShardBlock> blocks,
                             const StepTables& tables, TypedBuffer message, Findings* findings) {
  if (blocks.empty()) return;
  check_dtype("pack: the message", message.dtype);
  launch_on(stream, blocks, cuda::pack_direction, tables, message, findings);
}

void CudaOps::pack_partial_grad(Stream& stream, std::span<const ShardBlock> blocks,
                                const ParamView* params, TypedBuffer message, Findings* findings) {
  if (blocks.empty()) return;
  check_dtype("pack: the message", message.dtype);
  launch_on(stream, blocks, cuda::pack_partial_grad, params, message, findings);
}

void CudaOps::accumulate(Stream& stream, std::span<const ShardBlock> blocks, float* sums,
                         ConstTypedBuffer message, bool first) {
  if (blocks.empty()) return;
  check_dtype("sum: the message", message.dtype);
  launch_on(stream, blocks, cuda::accumulate, sums, message, first);
}

void CudaOps::pack_adamw(Stream& stream, std::span<const ShardBlock> blocks,
                         const StepTables& tables, TypedBuffer message, Findings* findings) {
  if (blocks.empty()) return;
  check_dtype("AdamW: the message", message.dtype);
  launch_on(stream, blocks, cuda::pack_adamw, tables, message, findings);
}

void CudaOps::commit_values(Stream& stream, std::span<const ShardBlock> blocks,
                            const ParamView* params, ConstTypedBuffer message,
                            const CommitCondition& condition) {
  if (blocks.empty()) return;
  check_dtype("commit: the message", message.dtype);
  launch_on(stream, blocks, cuda::commit_values, params, message, condition);
}

void CudaOps::scan(Stream& stream, std::span<const int32_t> list, const ParamView* params,
                   Findings* findings) {
  if (list.empty()) return;
  const DeviceGuard guard(device_.index());
  const cudaStream_t handle = handle_of(stream);
  cuda::scan(params_.find(list.data(), handle, list).items, std::ssize(list), params, findings,
             device_.resident_blocks(), handle);
}

void CudaOps::check_masters(Stream& stream, std::span<const int32_t> list, const ParamView* params,
                            Findings* findings) {
  if (list.empty()) return;
  const DeviceGuard guard(device_.index());
  const cudaStream_t handle = handle_of(stream);
  cuda::check_masters(params_.find(list.data(), handle, list).items, std::ssize(list), params,
                      findings, device_.resident_blocks(), handle);
}

void CudaOps::unpack(Stream& stream, std::span<const MatrixBlock> blocks,
                     std::span<const OwnedMatrix> owned, const MatrixBatch* matrices,
                     ConstTypedBuffer message) {
  if (blocks.empty()) return;
  check_iterate("unpack: the message", message.dtype);
  for (size_t i = 0; i < owned.size(); ++i)
    MUONRT_CHECK_INTERNAL(matrices[i].dtype == message.dtype, "unpack from ",
                          name_of(message.dtype), " to ", name_of(matrices[i].dtype));
  const DeviceGuard guard(device_.index());
  const cudaStream_t handle = handle_of(stream);
  cuda::unpack(unpacked_.find(blocks.data(), handle, blocks, owned, matrices), message, handle);
}

void CudaOps::pack(Stream& stream, std::span<const MatrixBlock> blocks,
                   std::span<const OwnedMatrix> owned, const MatrixBatch* matrices,
                   TypedBuffer message, Findings* findings) {
  if (blocks.empty()) return;
  check_iterate("pack: the message", message.dtype);
  for (size_t i = 0; i < owned.size(); ++i) check_iterate("pack: a matrix", matrices[i].dtype);
  const DeviceGuard guard(device_.index());
  const cudaStream_t handle = handle_of(stream);
  cuda::pack(packed_.find(blocks.data(), handle, blocks, owned, matrices), message, findings,
             handle);
}

void CudaOps::normalize(Stream& stream, const MatrixBatch& in, const MatrixBatch& out,
                        const Normalization& how, Findings* findings) {
  check_normalize(in, out, how);
  if (empty(in)) return;
  check_dtype("normalization: the input", in.dtype);
  check_iterate("normalization: the output", out.dtype);
  const DeviceGuard guard(device_.index());
  cuda::normalize(in, out, how, findings, normalize_scratch_.data(), handle_of(stream));
}

void CudaOps::scale_rows(Stream& stream, const MatrixBatch& gram, const MatrixBatch& x,
                         const MatrixBatch& factors, const AolRule& rule) {
  check_scale_rows(gram, x, factors, rule);
  if (empty(gram)) return;
  check_iterate("row factors: the Gram matrix", gram.dtype);
  const DeviceGuard guard(device_.index());
  cuda::scale_rows(gram, x, factors, rule, handle_of(stream));
}

bool CudaOps::vendor_computes(const Product& p) const {
  const bool one_dtype = p.a.dtype == p.b.dtype && p.a.dtype == p.c.dtype &&
                         (p.d.data == nullptr || p.beta == 0.0f || p.d.dtype == p.a.dtype);
  return vendor_ && one_dtype && p.gamma == 0.0f;
}

bool CudaOps::own_computes(const Product& p) const {
  return symmetric_ && symmetric_->takes(p) && !nothing_to_multiply(p);
}

void CudaOps::multiply(Stream& stream, std::span<const Product> products) {
  const DeviceGuard guard(device_.index());
  const cudaStream_t handle = handle_of(stream);
  std::vector<Product> own;
  for (const Product& product : products) {
    check_product(product);
    if (empty(product.c)) continue;
    if (own_computes(product)) {
      own.push_back(product);
    } else {
      multiply_alone(product, handle);
    }
  }
  if (!own.empty()) symmetric_->multiply(own, handle);
}

void CudaOps::multiply_alone(const Product& product, cudaStream_t stream) {
  // If D is symmetric, the sum is also symmetric. If D is not symmetric, only its upper triangle is
  // read.
  if (nothing_to_multiply(product)) {
    scale_add_identity(product, stream);
    if (product.symmetric) mirror(product.c, stream);
    return;
  }
  if (!vendor_computes(product)) return naive_gemm(product, stream);
  vendor_->multiply(product, stream);
  if (product.symmetric) mirror(product.c, stream);
}

void CudaOps::add_identity(Stream& stream, const MatrixBatch& x, float gamma) {
  check_add_identity(x);
  if (empty(x)) return;
  check_iterate("adding the identity", x.dtype);
  const DeviceGuard guard(device_.index());
  cuda::add_identity(x, gamma, handle_of(stream));
}

void CudaOps::cast_vote(Stream& stream, Vote* vote, const Findings* findings, int64_t fingerprint,
                        int64_t orthogonalized, bool local_ok) {
  const DeviceGuard guard(device_.index());
  cuda::cast_vote(vote, findings, fingerprint, orthogonalized, local_ok, handle_of(stream));
}

void CudaOps::commit_muon(Stream& stream, std::span<const ShardBlock> blocks,
                          const StepTables& tables, ConstTypedBuffer message,
                          const CommitCondition& condition) {
  if (blocks.empty()) return;
  check_dtype("commit: the message", message.dtype);
  launch_on(stream, blocks, cuda::commit_muon, tables, message, condition);
}

void CudaOps::commit_update(Stream& stream, std::span<const ShardBlock> blocks,
                            const StepTables& tables, ConstTypedBuffer message,
                            const CommitCondition& condition) {
  if (blocks.empty()) return;
  check_dtype("commit: the message", message.dtype);
  launch_on(stream, blocks, cuda::commit_update, tables, message, condition);
}

void CudaOps::commit_momentum(Stream& stream, std::span<const ShardBlock> blocks,
                              const StepTables& tables, const CommitCondition& condition) {
  if (blocks.empty()) return;
  launch_on(stream, blocks, cuda::commit_momentum, tables, condition);
}

void CudaOps::commit_adamw(Stream& stream, std::span<const int32_t> list,
                           std::span<const ShardBlock> blocks, const StepTables& tables,
                           const CommitCondition& condition) {
  if (list.empty() && blocks.empty()) return;
  const DeviceGuard guard(device_.index());
  const cudaStream_t handle = handle_of(stream);
  if (!list.empty())
    cuda::commit_adamw(params_.find(list.data(), handle, list).items, std::ssize(list), tables,
                       condition, device_.resident_blocks(), handle);
  if (!blocks.empty())
    cuda::commit_adamw_blocks(blocks_.find(blocks.data(), handle, blocks), tables, condition,
                              handle);
}

}  // namespace muonrt::cuda
