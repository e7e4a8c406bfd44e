#include "support/numerics/newton_schulz_runner.hpp"

#include <cstdint>
#include <cstring>
#include <memory>
#include <new>
#include <stdexcept>

#include "support/numerics/reference_ops.hpp"

namespace runner {

using namespace muonrt;

namespace {

constexpr int64_t kRedZone = 4096;        // in bytes
constexpr unsigned char kNaNByte = 0xff;  // NaN in every dtype

/// Memory that is aligned to 256 bytes, with a red zone before and after it. Memory and red zones
/// are filled with NaN.
class RedZoned {
 public:
  RedZoned(const backends::Backend& backend, int64_t bytes)
      : bytes_((bytes + 255) / 256 * 256), memory_(backend.memory(bytes_ + 2 * kRedZone)) {
    std::memset(memory_.get(), kNaNByte, static_cast<size_t>(bytes_ + 2 * kRedZone));
  }
  unsigned char* data() { return start() + kRedZone; }
  int64_t bytes() const { return bytes_; }
  bool red_zones_are_intact() const {
    for (int64_t i = 0; i < kRedZone; ++i)
      if (start()[i] != kNaNByte || start()[kRedZone + bytes_ + i] != kNaNByte) return false;
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

/// The input and workspace of a job on a backend.
class Bench {
 public:
  Bench(backends::Backend& backend, const Job& job)
      : job_(job),
        raw_(shape(*backend.ops, job)),
        input_(backend, raw_.count * raw_.stride * size_of(raw_.dtype)),
        space_(backend, newton_schulz_workspace(*backend.ops, job.settings, job.method, raw_.rows,
                                                raw_.cols, raw_.count)) {
    raw_.data = input_.data();
    for (int64_t k = 0; k < raw_.count; ++k)
      for (int64_t i = 0; i < raw_.rows; ++i)
        for (int64_t j = 0; j < raw_.cols; ++j)
          reference_ops::store(raw_.data, raw_.dtype, k * raw_.stride + i * raw_.ld + j,
                               static_cast<float>(job.batch[static_cast<size_t>(k)](i, j)));
    reserve(*backend.ops, job.settings, job.method, raw_.rows, raw_.cols);
  }

  OrthogonalizeArgs args() { return {&job_.settings, &job_.method, raw_, space_.data(), nullptr}; }

  std::vector<reference::Matrix> matrices(const MatrixBatch& out) {
    const int64_t m = raw_.rows, n = raw_.cols, count = raw_.count;
    require(space_.red_zones_are_intact(), "written outside the workspace");
    require(out.rows == m && out.cols == n && out.count == count, "result of another shape");
    const auto* first = static_cast<const unsigned char*>(out.data);
    require(first >= space_.data() &&
                first + count * out.stride * size_of(out.dtype) <= space_.data() + space_.bytes(),
            "result outside the workspace");
    require(
        reinterpret_cast<uintptr_t>(first) % 256 == 0 && out.stride * size_of(out.dtype) % 256 == 0,
        "a matrix of the result is not aligned to 256 bytes");
    std::vector<reference::Matrix> list;
    for (int64_t k = 0; k < count; ++k) {
      reference::Matrix x(m, n);
      for (int64_t i = 0; i < m; ++i)
        for (int64_t j = 0; j < n; ++j)
          x(i, j) = reference_ops::load(out.data, out.dtype, k * out.stride + i * out.ld + j);
      list.push_back(x);
    }
    return list;
  }

 private:
  static MatrixBatch shape(const Ops& ops, const Job& job) {
    MatrixBatch raw;
    raw.dtype = job.transport;
    raw.rows = job.batch.at(0).rows;
    raw.cols = job.batch.at(0).cols;
    raw.ld = ops.leading_dimension(raw.cols, raw.dtype);
    raw.count = std::ssize(job.batch);
    raw.stride = raw.rows * raw.ld;
    return raw;
  }
  const Job& job_;
  MatrixBatch raw_;
  RedZoned input_, space_;
};

}  // namespace

std::vector<Result> orthogonalize(backends::Backend& backend, const std::vector<Job>& jobs) {
  std::vector<Bench> benches;
  std::vector<OrthogonalizeArgs> args;
  for (const Job& job : jobs) {
    benches.emplace_back(backend, job);
    args.push_back(benches.back().args());
  }
  const auto shared_findings = backend.memory(sizeof(Findings));
  auto* findings = new (shared_findings.get()) Findings();
  const Orthogonalization all(*backend.ops, *backend.stream, args, findings);
  all.enqueue();
  backend.wait();
  const auto& out = all.results();
  require(out.size() == jobs.size(), "another number of results");
  std::vector<Result> results;
  for (size_t i = 0; i < jobs.size(); ++i)
    results.push_back({benches[i].matrices(out[i]), *findings});
  return results;
}

Result orthogonalize(backends::Backend& backend, const NewtonSchulz& settings, const Method& method,
                     DType transport, const std::vector<reference::Matrix>& batch) {
  return orthogonalize(backend, {{settings, method, transport, batch}})[0];
}

reference::Matrix orthogonalize(backends::Backend& backend, const NewtonSchulz& settings,
                                const Method& method, DType transport,
                                const reference::Matrix& matrix) {
  return orthogonalize(backend, settings, method, transport, std::vector{matrix}).matrices[0];
}

NewtonSchulz settings_of(const reference::List& list, double safety, DType iteration,
                         const std::vector<int>& restarts) {
  NewtonSchulz out;
  for (const auto& t : list) out.list.steps.push_back({t.a, t.b, t.c});
  out.list.input_safety = safety;
  out.gram_list = out.list;
  out.gram_restarts = restarts;
  out.iteration = out.gram_iteration = iteration;
  return out;
}

Method standard(const reference::List& list) {
  return {Form::kStandard, static_cast<int>(list.size()), {}};
}

Method gram(const reference::List& list, const std::vector<int>& restarts) {
  return {Form::kGram, static_cast<int>(list.size()), restarts};
}

bool same_bits(const reference::Matrix& a, const reference::Matrix& b) {
  return a.rows == b.rows && a.cols == b.cols &&
         std::memcmp(a.v.data(), b.v.data(), a.v.size() * sizeof(double)) == 0;
}

}  // namespace runner
