#include <algorithm>

#include "backend/op_checks.hpp"
#include "base/checked.hpp"
#include "host/dtype_dispatch.hpp"
#include "host/host_ops.hpp"
#include "host/host_stream.hpp"

namespace muonrt::host {

namespace {

/// Returns whether a product has too few tiles for many threads. If so, each thread computes whole
/// products of a batch, with bitwise identical results. Because each thread then needs its own
/// scratch memory, the size is also limited.
bool is_small(int64_t m, int64_t n, int64_t k) {
  return m <= 4096 && n <= 4096 && m * n <= 512 * 512 && k <= (1 << 20) / (m + n);
}

bool is_small(const Product& p) { return is_small(p.c.rows, p.c.cols, p.a.cols); }

/// Returns whether all products of the batches with the size of `p` are small.
bool is_in_small_batch(std::span<const Product> products, const Product& p) {
  return std::all_of(products.begin(), products.end(), [&](const Product& q) {
    return q.c.rows != p.c.rows || q.c.count != p.c.count || is_small(q);
  });
}

ConstMatrixRef at(const MatrixBatch& batch, int64_t index) {
  if (batch.data == nullptr) return {};
  return {static_cast<const char*>(batch.data) + index * batch.stride * size_of(batch.dtype),
          batch.dtype, batch.rows, batch.cols, batch.ld};
}

GemmArgs one_of(const Product& product, int64_t index) {
  GemmArgs args;
  args.a = at(product.a, index);
  args.b = at(product.b, index);
  args.d = at(product.d, index);
  const MatrixBatch& c = product.c;
  args.c = {static_cast<char*>(c.data) + index * c.stride * size_of(c.dtype), c.dtype, c.rows,
            c.cols, c.ld};
  args.transpose_b = product.transpose_b;
  args.symmetric = product.symmetric;
  args.alpha = product.alpha;
  if (product.alpha == 0.0f) {
    args.a.cols = 0;
    (args.transpose_b ? args.b.cols : args.b.rows) = 0;
  }
  args.beta = product.beta;
  args.gamma = product.gamma;
  return args;
}

/// Prepares all forms of a product with this size. Returns the number of bytes that the largest of
/// them needs.
int64_t bytes_for_all_forms(GemmScratch& scratch, int threads, int64_t m, int64_t n, int64_t k,
                            DType dtype) {
  // bytes_for() only checks whether these pointers are null or equal.
  char memory[3] = {};
  char *a = memory, *b = memory + 1, *other = memory + 2;
  GemmArgs args;
  args.a = ConstMatrixRef(a, dtype, m, k, host_ld(k));
  args.c = {other, dtype, m, n, host_ld(n)};
  int64_t most = 0;
  for (const bool transpose : {false, true}) {
    const int64_t rows = transpose ? n : k, cols = transpose ? k : n;
    args.transpose_b = transpose;
    for (const bool same : {false, true}) {
      if (same && (rows != m || cols != k)) continue;
      args.b = ConstMatrixRef(same ? a : b, dtype, rows, cols, host_ld(cols));
      for (const bool symmetric : {false, true}) {
        if (symmetric && m != n) continue;
        args.symmetric = symmetric;
        for (const float beta : {0.0f, 1.0f}) {
          args.beta = beta;
          args.d = ConstMatrixRef(beta == 0.0f ? nullptr : other, dtype, m, n, host_ld(n));
          most = std::max(most, scratch.bytes_for(args, threads));
        }
      }
    }
  }
  return most;
}

}  // namespace

void HostOps::Products::reserve(Device& device, int threads, int64_t m, int64_t n, int64_t k,
                                DType dtype) {
  const int64_t bytes = bytes_for_all_forms(scratch, threads, m, n, k, dtype);
  if (bytes <= memory.bytes()) return;
  scratch.set_workspace(nullptr, 0);
  memory = Buffer();
  memory = Buffer(device, bytes);
  scratch.set_workspace(memory.data(), bytes);
}

void HostOps::reserve(int64_t m, int64_t n, int64_t k, DType dtype) {
  if (m == 0 || n == 0 || k == 0) return;
  const std::lock_guard lock(pool_mutex_);
  shared_.reserve(device_, pool_.threads(), m, n, k, dtype);
  if (pool_.threads() == 1 || !is_small(m, n, k)) return;
  while (std::ssize(workers_) < pool_.threads())
    workers_.push_back(std::make_unique<Worker>(shared_.scratch.kernel()));
  for (const auto& worker : workers_) worker->products.reserve(device_, 1, m, n, k, dtype);
}

namespace {

void check_counts(std::span<const Product> products) {
  for (const Product& product : products) {
    const MatrixBatch &a = product.a, &b = product.b, &c = product.c, &d = product.d;
    MUONRT_CHECK_INTERNAL(
        a.count == c.count && b.count == c.count && (d.data == nullptr || d.count == c.count),
        "product of batches of ", a.count, ", ", b.count, " and ", d.count, " into ", c.count);
  }
}

}  // namespace

void HostOps::multiply(Stream& stream, std::span<const Product> products) {
  check_counts(products);
  for (const Product& product : products) {
    if (product.c.count == 0 || product.c.rows == 0 || product.c.cols == 0) continue;
    host_stream(stream).enqueue(Task([product, this] { multiply_now(product); }));
  }
}

bool HostOps::multiply_by_matrix(Stream& stream, std::span<const Product> products) {
  // Larger matrices are not in the cache even between two products of one matrix.
  constexpr int64_t kMaxElements = int64_t{1} << 23;
  int64_t small = 0, large = 0;  // number of matrices
  for (const Product& p : products) {
    if (p.c.rows == 0 || p.c.cols == 0) return false;
    if (std::max(p.c.rows, p.a.cols) > kMaxElements / p.c.cols) return false;
    int64_t& count = is_in_small_batch(products, p) ? small : large;
    count = std::max(count, p.c.count);
  }
  if (std::max(small, large) <= 1 || (pool_.threads() > 1 && workers_.empty() && small > 0))
    return false;
  check_counts(products);
  const auto enqueue = [&](auto body) {
    host_stream(stream).enqueue(Task([products, body, this] {
      const std::lock_guard lock(pool_mutex_);
      body(products);
    }));
  };
  if (small > 0)
    enqueue([small, mixed = large > 0, this](std::span<const Product> all) {
      pool_.parallel_for(small, [&](int64_t index, int thread) {
        for (const Product& p : all)
          if (index < p.c.count && (!mixed || is_in_small_batch(all, p)))
            multiply_one(p, index, thread);
      });
    });
  for (int64_t index = 0; index < large; ++index)
    enqueue([index, this](std::span<const Product> all) {
      for (const Product& p : all)
        if (index < p.c.count && !is_in_small_batch(all, p))
          gemm(one_of(p, index), pool_, shared_.scratch);
    });
  return true;
}

void HostOps::multiply_now(const Product& product) {
  const std::lock_guard lock(pool_mutex_);
  const int64_t count = product.c.count;
  if (count > 1 && !workers_.empty() && is_small(product.c.rows, product.c.cols, product.a.cols)) {
    pool_.parallel_for(count,
                       [&](int64_t index, int thread) { multiply_one(product, index, thread); });
    return;
  }
  for (int64_t index = 0; index < count; ++index)
    gemm(one_of(product, index), pool_, shared_.scratch);
}

void HostOps::multiply_one(const Product& product, int64_t index, int thread) {
  if (workers_.empty()) return gemm(one_of(product, index), pool_, shared_.scratch);
  Worker& worker = *workers_[static_cast<size_t>(thread)];
  gemm(one_of(product, index), worker.pool, worker.products.scratch);
}

void HostOps::add_identity(Stream& stream, const MatrixBatch& x, float gamma) {
  check_add_identity(x);
  if (x.count == 0 || x.rows == 0) return;
  host_stream(stream).enqueue(Task([x, gamma, this] {
    with_iterate(x.dtype, [&](auto type) {
      using T = decltype(type);
      spread(x.count, [&](int64_t matrix, int) {
        T* const first = static_cast<T*>(x.data) + matrix * x.stride;
        for (int64_t i = 0; i < x.rows; ++i) {
          T& element = first[i * (x.ld + 1)];
          element = from_f32<T>(to_f32(element) + gamma);
        }
      });
    });
  }));
}

}  // namespace muonrt::host
