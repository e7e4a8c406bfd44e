#include "support/newton_schulz_runner.hpp"

#include <cstdint>
#include <cstring>
#include <memory>
#include <new>
#include <stdexcept>

#include "support/reference_ops.hpp"

namespace runner {

using namespace muonrt;

namespace {

constexpr int64_t kGuard = 4096;          // bytes
constexpr unsigned char kNaNByte = 0xff;  // NaN in every dtype

/// 256-byte aligned memory between two guards, all NaN.
class Guarded {
 public:
  Guarded(const backends::Backend& backend, int64_t bytes)
      : bytes_((bytes + 255) / 256 * 256), memory_(backend.memory(bytes_ + 2 * kGuard)) {
    std::memset(memory_.get(), kNaNByte, static_cast<size_t>(bytes_ + 2 * kGuard));
  }
  unsigned char* data() { return start() + kGuard; }
  int64_t bytes() const { return bytes_; }
  bool guards_are_intact() const {
    for (int64_t i = 0; i < kGuard; ++i)
      if (start()[i] != kNaNByte || start()[kGuard + bytes_ + i] != kNaNByte) return false;
    return true;
  }

 private:
  unsigned char* start() const { return static_cast<unsigned char*>(memory_.get()); }
  int64_t bytes_;
  std::shared_ptr<void> memory_;
};

void require(bool condition, const char* what) {
  if (!condition) throw std::logic_error(what);
}

}  // namespace

Result orthogonalize(backends::Backend& backend, const NewtonSchulz& settings, const Method& method,
                     DType transport, const std::vector<textbook::Matrix>& batch) {
  const int64_t m = batch.at(0).rows, n = batch.at(0).cols;
  const auto count = static_cast<int64_t>(batch.size());
  MatrixBatch raw;
  raw.dtype = transport;
  raw.rows = m;
  raw.cols = n;
  raw.ld = backend.ops->leading_dimension(n, transport);
  raw.count = count;
  raw.stride = m * raw.ld;
  Guarded input(backend, count * raw.stride * size_of(transport));
  raw.data = input.data();
  for (int64_t k = 0; k < count; ++k)
    for (int64_t i = 0; i < m; ++i)
      for (int64_t j = 0; j < n; ++j)
        reference::store(raw.data, transport, k * raw.stride + i * raw.ld + j,
                         static_cast<float>(batch[static_cast<size_t>(k)](i, j)));

  reserve(*backend.ops, settings, method, m, n);
  Guarded space(backend, newton_schulz_workspace(*backend.ops, settings, method, m, n, count));
  Result result;
  const auto shared_findings = backend.memory(sizeof(Findings));
  auto* findings = new (shared_findings.get()) Findings();
  const MatrixBatch out = muonrt::orthogonalize(*backend.ops, *backend.stream, settings, method,
                                                raw, space.data(), findings);
  backend.wait();
  result.findings = *findings;
  require(space.guards_are_intact(), "written outside the workspace");
  require(out.rows == m && out.cols == n && out.count == count, "result of another shape");
  const auto* first = static_cast<const unsigned char*>(out.data);
  require(first >= space.data() &&
              first + count * out.stride * size_of(out.dtype) <= space.data() + space.bytes(),
          "result outside the workspace");
  require(
      reinterpret_cast<uintptr_t>(first) % 256 == 0 && out.stride * size_of(out.dtype) % 256 == 0,
      "a matrix of the result is not aligned to 256 bytes");
  for (int64_t k = 0; k < count; ++k) {
    textbook::Matrix x(m, n);
    for (int64_t i = 0; i < m; ++i)
      for (int64_t j = 0; j < n; ++j)
        x(i, j) = reference::load(out.data, out.dtype, k * out.stride + i * out.ld + j);
    result.matrices.push_back(x);
  }
  return result;
}

textbook::Matrix orthogonalize(backends::Backend& backend, const NewtonSchulz& settings,
                               const Method& method, DType transport,
                               const textbook::Matrix& matrix) {
  return orthogonalize(backend, settings, method, transport, std::vector{matrix}).matrices[0];
}

NewtonSchulz settings_of(const textbook::List& list, double safety, DType iteration,
                         const std::vector<int>& restarts) {
  NewtonSchulz out;
  for (const auto& t : list) out.list.steps.push_back({t.a, t.b, t.c});
  out.list.input_safety = safety;
  out.gram_list = out.list;
  out.gram_restarts = restarts;
  out.iteration = out.gram_iteration = iteration;
  return out;
}

Method standard(const textbook::List& list) {
  return {Form::kStandard, static_cast<int>(list.size()), {}};
}

Method gram(const textbook::List& list, const std::vector<int>& restarts) {
  return {Form::kGram, static_cast<int>(list.size()), restarts};
}

bool same_bits(const textbook::Matrix& a, const textbook::Matrix& b) {
  return a.rows == b.rows && a.cols == b.cols &&
         std::memcmp(a.v.data(), b.v.data(), a.v.size() * sizeof(double)) == 0;
}

}  // namespace runner
