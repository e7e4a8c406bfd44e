#include "pipeline/orthogonalizer.hpp"

#include <algorithm>
#include <bit>
#include <cstring>
#include <utility>

#include "base/checked.hpp"
#include "base/error.hpp"
#include "plan/rank_chunk.hpp"

namespace muonrt {

/// The lists that Ops::unpack() and Ops::pack() use to copy the matrices of a tensor, as if the
/// tensor were a message.
struct TensorCopies {
  std::vector<OwnedMatrix> owned;
  std::vector<MatrixBatch> matrices;
  std::vector<MatrixBlock> blocks;

  TensorCopies() = default;
  /// @param first   Index of the first matrix in the tensor.
  /// @param stored  Matrices in the workspace.
  /// @param square  True if the matrices are stored as rows x cols even if rows > cols. Otherwise
  ///     their short side is stored first.
  TensorCopies(const TensorView& tensor, int64_t first, const MatrixBatch& stored, bool square) {
    // A column-major tensor is a row-major tensor of the transposed matrices.
    const bool transposed = tensor.column_major();
    const size_t d = tensor.shape.size();
    const int64_t rows = tensor.shape[d - (transposed ? 1 : 2)];
    const int64_t cols = tensor.shape[d - (transposed ? 2 : 1)];
    const int64_t ld = tensor.strides[d - (transposed ? 1 : 2)];
    // Ops store the matrix of an OwnedMatrix with its short side first; for a square matrix,
    // `inputs_first` determines which side comes first. To store matrices as rows x cols, they are
    // declared as part of a larger square, of which only that part is copied.
    const int64_t side = std::max(rows, cols);
    const OwnedMatrix whole{0, square ? side : rows, square ? side : cols, transposed};
    for (int64_t i = 0; i < stored.count; ++i) {
      MatrixBatch one = stored;
      one.data = static_cast<char*>(stored.data) + i * stored.stride * size_of(stored.dtype);
      one.count = 1;
      one.rows = whole.short_side();
      one.cols = whole.long_side();
      owned.push_back(whole);
      matrices.push_back(one);
      const int64_t offset = tensor.offset_of(first + i);
      const auto matrix = static_cast<int32_t>(i);
      if (ld == cols || rows == 1) {
        blocks.push_back({matrix, rows, cols, 0, 0, offset});
        continue;
      }
      for (int64_t row = 0; row < rows; ++row)
        blocks.push_back({matrix, 1, cols, row, 0, offset + row * ld});
    }
  }
};

namespace {

/// Divides a workspace into buffers, or computes only their total size if it has no memory.
class Carver {
 public:
  explicit Carver(const MatrixRules& rules) : rules_(rules) {}
  void begin(void* memory) {
    memory_ = static_cast<char*>(memory);
    bytes_ = 0;
  }
  void* take(int64_t bytes) {
    char* const at = memory_ ? memory_ + bytes_ : nullptr;
    bytes_ = checked_add(bytes_, round_up(bytes, kMemoryAlignment));
    return at;
  }
  MatrixBatch batch(DType dtype, int64_t rows, int64_t cols, int64_t count, bool dense = false) {
    MatrixBatch out{nullptr, dtype, rows, cols, cols, count, 0};
    if (!dense) out.ld = rules_.leading_dimension(cols, dtype);
    out.stride = round_up(checked_mul(rows, out.ld), dense ? 1 : kMemoryAlignment / size_of(dtype));
    out.data = take(checked_mul(checked_mul(out.stride, count), size_of(dtype)));
    return out;
  }
  int64_t bytes() const { return bytes_; }

 private:
  const MatrixRules& rules_;
  char* memory_ = nullptr;
  int64_t bytes_ = 0;
};

void add_to_key(std::vector<int64_t>& key, const TensorView& t) {
  key.push_back(static_cast<int64_t>(t.dtype));
  key.insert(key.end(), t.shape.begin(), t.shape.end());
  key.insert(key.end(), t.strides.begin(), t.strides.end());
}

}  // namespace

/// The prepared work for calls with certain shapes, strides and dtypes. All addresses in the
/// prepared work refer to the workspace.
struct Orthogonalizer::Work {
  /// Matrices that run together.
  struct Part {
    MatrixBatch widened;  // f16 input converted to dense f32; not used for other dtypes
    TensorCopies in, widen, second, out;
    std::vector<NormuonState> lines;
    std::optional<Orthogonalization> newton_schulz;
    Product product;
  };
  Method method;
  std::vector<Part> parts;
  bool ran = false;
};

Orthogonalizer::Orthogonalizer(std::unique_ptr<Device> device, NewtonSchulz settings,
                               FormChoice form)
    : device_(std::move(device)),
      settings_(std::move(settings)),
      form_(form),
      stream_(device_->create_caller_stream()),
      done_(device_->create_event()),
      findings_(*device_, sizeof(Findings)) {}

Orthogonalizer::~Orthogonalizer() {
  try {
    device_->synchronize(*done_, Deadline::in_ms(kMaxTimeoutMs));
  } catch (const Error&) {  // a lost context runs no work
  }
}

void* Orthogonalizer::workspace(int64_t bytes) {
  if (workspaces_.empty() || workspaces_.back().bytes() < bytes)
    workspaces_.emplace_back(*device_, bytes);
  return workspaces_.back().data();
}

Orthogonalizer::Work& Orthogonalizer::find(const char* what, std::vector<int64_t> key,
                                           bool captured,
                                           const std::function<std::unique_ptr<Work>()>& build) {
  auto at = works_.find(key);
  MUONRT_REQUIRE(!captured || (at != works_.end() && at->second->ran), Status::kNotSupported, what,
                 ": the stream is being captured, but this is the first call with these shapes, "
                 "strides and dtypes, which allocates memory; make one call before the capture");
  if (at == works_.end()) at = works_.emplace(std::move(key), build()).first;
  return *at->second;
}

void Orthogonalizer::finish(bool captured) {
  if (captured) return;
  device_->record(*done_, *stream_);
  if (!device_->host_reaches_memory()) return;
  device_->synchronize(*done_, Deadline::in_ms(kMaxTimeoutMs));
  const std::optional<Error> error = device_->error();
  if (!error) return;
  device_->clear_error();
  throw Error(*error);
}

namespace {

/// Returns the number of matrices of this size in one batch. The workspace of a batch is limited to
/// that of a chunk with the default chunk_bytes for GPUs.
int64_t part_size(const MatrixRules& rules, int64_t elements, int64_t count) {
  const int64_t most = std::min(rules.launch_limits().max_elements, int64_t{1} << 27);
  return std::clamp<int64_t>(most / std::max<int64_t>(elements, 1), 1, count);
}

}  // namespace

std::optional<std::vector<int64_t>> Orthogonalizer::orthogonalize(const TensorView& out,
                                                                  const TensorView& x,
                                                                  int64_t* nonfinite,
                                                                  void* callers_stream) {
  constexpr const char* kWhat = "orthogonalize";
  Ops& ops = device_->ops();
  const bool captured = device_->follow(*stream_, callers_stream, kWhat);
  const int64_t m = std::min(x.rows(), x.cols()), n = std::max(x.rows(), x.cols());
  auto* const findings = findings_.as<Findings>();
  const bool half = x.dtype == DType::kF16;
  const auto build = [&] {
    auto work = std::make_unique<Work>();
    work->method =
        choose_method(form_, x.rows(), x.cols(), static_cast<int>(settings_.list.steps.size()),
                      settings_.gram_restarts);
    reserve(ops, settings_, work->method, m, n);
    const int64_t at_once = part_size(ops, m * n, x.count());
    Carver carver(ops);
    MatrixBatch raw, input;
    void* scratch = nullptr;
    const auto carve = [&](int64_t count) {
      raw = carver.batch(x.dtype, m, n, count);
      input = half ? carver.batch(DType::kF32, m, n, count, true) : raw;
      scratch = carver.take(newton_schulz_workspace(ops, settings_, work->method, m, n, count));
    };
    carve(at_once);
    void* const memory = workspace(carver.bytes());
    for (int64_t first = 0; first < x.count(); first += at_once) {
      carver.begin(memory);
      carve(std::min(at_once, x.count() - first));
      Work::Part& part = work->parts.emplace_back();
      part.in = TensorCopies(x, first, raw, false);
      part.widened = input;
      if (half) {
        const TensorView dense{nullptr, DType::kF32, {raw.count, m, n}, {m * n, n, 1}};
        part.widen = TensorCopies(dense, 0, raw, false);
      }
      const OwnedMatrix& owned = part.in.owned[0];
      if (settings_.scales_neurons()) part.lines.resize(2 * static_cast<size_t>(raw.count));
      for (NormuonState& line : part.lines)
        line.stored_rows = owned.inputs_first == owned.transposed();
      const OrthogonalizeArgs args{&settings_, &work->method, input, scratch, nullptr, part.lines};
      part.newton_schulz.emplace(ops, *stream_, std::span(&args, 1), findings);
      part.out = TensorCopies(out, first, part.newton_schulz->results()[0], false);
    }
    return work;
  };
  if (x.is_empty()) {
    static constexpr int64_t kNone = 0;
    if (nonfinite) ops.copy(*stream_, nonfinite, &kNone, sizeof kNone);
    finish(captured);
    return std::nullopt;
  }
  if (device_->host_reaches_memory()) {
    auto found = find_nonfinite(x);
    if (nonfinite) *nonfinite = found ? 1 : 0;
    if (found) return found;
  }
  std::vector<int64_t> key = {0, std::ssize(x.shape)};
  add_to_key(key, x);
  add_to_key(key, out);
  Work& work = find(kWhat, std::move(key), captured, build);
  static constexpr Findings kNothing;
  ops.copy(*stream_, findings, &kNothing, sizeof kNothing);
  for (Work::Part& part : work.parts) {
    ops.unpack(*stream_, part.in.blocks, part.in.owned, part.in.matrices.data(),
               {.data = x.data, .dtype = x.dtype});
    if (half)
      ops.pack(*stream_, part.widen.blocks, part.widen.owned, part.widen.matrices.data(),
               {.data = part.widened.data, .dtype = DType::kF32}, findings);
    part.newton_schulz->enqueue();
    ops.pack(*stream_, part.out.blocks, part.out.owned, part.out.matrices.data(),
             {.data = out.data, .dtype = out.dtype}, findings);
  }
  if (nonfinite) ops.copy(*stream_, nonfinite, &findings->nonfinite, sizeof *nonfinite);
  finish(captured);
  work.ran = true;
  return std::nullopt;
}

void Orthogonalizer::symmetric_product(const TensorView& c, float alpha, const TensorView& a,
                                       float beta, const TensorView* d, void* callers_stream) {
  constexpr const char* kWhat = "symmetric product";
  Ops& ops = device_->ops();
  const bool captured = device_->follow(*stream_, callers_stream, kWhat);
  const int64_t m = a.rows(), k = a.cols();
  if (d && (beta == 0.0f || d->is_empty())) d = nullptr;
  const bool separate = d && *d != a;
  const auto build = [&] {
    auto work = std::make_unique<Work>();
    ops.reserve(m, m, k, a.dtype);
    const int64_t at_once = part_size(ops, m * std::max(m, k), c.count());
    Carver carver(ops);
    MatrixBatch left, result, added;
    const auto carve = [&](int64_t count) {
      left = carver.batch(a.dtype, m, k, count);
      result = carver.batch(a.dtype, m, m, count);
      if (separate) added = carver.batch(a.dtype, m, m, count);
    };
    carve(at_once);
    void* const memory = workspace(carver.bytes());
    for (int64_t first = 0; first < c.count(); first += at_once) {
      carver.begin(memory);
      carve(std::min(at_once, c.count() - first));
      Work::Part& part = work->parts.emplace_back();
      if (k > 0) part.in = TensorCopies(a, first, left, true);
      if (separate) part.second = TensorCopies(*d, first, added, true);
      part.out = TensorCopies(c, first, result, true);
      part.product.a = part.product.b = left;
      part.product.c = result;
      if (d) part.product.d = separate ? added : left;
      part.product.transpose_b = part.product.symmetric = true;
    }
    return work;
  };
  if (c.is_empty()) return;
  std::vector<int64_t> key = {1, std::ssize(a.shape), d != nullptr, separate};
  add_to_key(key, a);
  add_to_key(key, c);
  if (separate) add_to_key(key, *d);
  Work& work = find(kWhat, std::move(key), captured, build);
  auto* const findings = findings_.as<Findings>();
  for (Work::Part& part : work.parts) {
    const auto unpack = [&](const TensorCopies& copies, const TensorView& from) {
      ops.unpack(*stream_, copies.blocks, copies.owned, copies.matrices.data(),
                 {.data = from.data, .dtype = from.dtype});
    };
    unpack(part.in, a);
    if (separate) unpack(part.second, *d);
    part.product.alpha = alpha;
    part.product.beta = beta;
    ops.multiply(*stream_, part.product);
    ops.pack(*stream_, part.out.blocks, part.out.owned, part.out.matrices.data(),
             {.data = c.data, .dtype = c.dtype}, findings);
  }
  finish(captured);
  work.ran = true;
}

}  // namespace muonrt
