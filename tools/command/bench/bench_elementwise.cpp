#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>

#include "command/bench/bench_parts.hpp"
#include "command/bench/bench_timer.hpp"
#include "command/bench/bench_values.hpp"
#include "command/command.hpp"
#include "command/gpu.hpp"
#include "command/validators.hpp"
#include "host/host_device.hpp"

namespace muonrt::tool {

namespace {

struct Arguments : DeviceArguments {
  int64_t elements = int64_t{1} << 24;
};

constexpr int64_t kCols = 4096, kFingerprint = 7;
constexpr int64_t kWideRows = 4096, kWideCols = 11008;

enum class Data {
  kMuon,        // bf16 parameter and gradient, master weights, momentum, and a message
  kPlainMuon,   // f32 parameter and gradient, momentum, and a message
  kPlainAdamW,  // as kPlainMuon, with a variance
  kRemainder,   // as kMuon, with a 16-bit remainder instead of the master weights
  kStochastic,  // as kMuon, with stochastic rounding instead of the master weights
  kAdamW,       // as kMuon, with a variance
  kTall,        // a matrix that is stored transposed, and a message
  kMatrix,      // a matrix of 4096 x 11008, or smaller if there are fewer elements
  kPlainTall,   // like kTall, in f32
  kPlainMatrix  // like kMatrix, with an f32 result
};

/// The operands of a pass over at most `elements` elements, in device memory.
struct ElementwiseWorkload {
  Workbench& bench;
  Ops& ops;
  Stream& stream;
  int64_t rows = 0, cols = 0;
  std::vector<ShardBlock> blocks;
  std::vector<int32_t> list = {0};
  ParamView view;
  ParamView* params = nullptr;
  MuonScalars* groups = nullptr;
  AdamScalars* adam = nullptr;
  Findings* findings = nullptr;
  Vote* sum = nullptr;
  void *message = nullptr, *other = nullptr;
  std::vector<OwnedMatrix> owned;
  std::vector<MatrixBlock> placed;
  MatrixBatch matrix, normal;

  ElementwiseWorkload(Workbench& on, Data data, int64_t most)
      : bench(on), ops(on.ops()), stream(on.stream()) {
    const bool wide = data == Data::kMatrix || data == Data::kPlainMatrix;
    const bool tall = data == Data::kTall || data == Data::kPlainTall;
    cols = std::min(wide ? kWideCols : kCols, most);
    if (tall)  // a power of two; the number of rows is then 2 to 8 times the number of columns
      for (cols = 1; 8 * cols * cols <= most;) cols *= 2;
    rows = most / cols;
    if (wide) rows = std::min(rows, kWideRows);
    findings = bench.put(std::vector<Findings>(1));
    message = bench.put(bench_values(6, DType::kBF16, elements()));
    other = bench.put(std::vector<unsigned char>(static_cast<size_t>(2 * elements())));
    if (tall || wide) {
      make_matrices(data == Data::kPlainTall ? DType::kF32 : DType::kBF16,
                    data == Data::kPlainMatrix ? DType::kF32 : DType::kBF16);
    } else {
      make_parameter(data);
    }
  }
  int64_t elements() const { return rows * cols; }

  void make_parameter(Data data) {
    const int64_t n = elements();
    const auto values = [&](uint64_t seed, DType dtype) {
      return bench.put(bench_values(seed, dtype, n));
    };
    ShardBlock block{};
    block.rows = rows;
    block.cols = block.local_ld = block.tensor_ld = cols;
    block.update_scale = 0.3f;
    blocks = {block};
    view.numel = n;
    const bool plain = data == Data::kPlainMuon || data == Data::kPlainAdamW;
    view.param_dtype = view.grad_dtype = plain ? DType::kF32 : DType::kBF16;
    view.param = values(1, view.param_dtype);
    view.grad = values(2, view.grad_dtype);
    view.momentum = reinterpret_cast<float*>(values(4, DType::kF32));
    if (data == Data::kRemainder) {
      view.form = WeightForm::kRemainder;
      view.remainder = reinterpret_cast<uint16_t*>(values(3, DType::kBF16));
    } else if (data == Data::kStochastic) {
      view.form = WeightForm::kStochastic;
      view.seed = 7;
    } else if (!plain) {
      view.form = WeightForm::kMaster;
      view.master = reinterpret_cast<float*>(values(3, DType::kF32));
    }
    if (data == Data::kAdamW || data == Data::kPlainAdamW) {
      auto variance = bench_values(5, DType::kF32, n);
      for (int64_t i = 0; i < n; ++i) variance[static_cast<size_t>(4 * i + 3)] &= 0x7f;
      view.variance = reinterpret_cast<float*>(bench.put(variance));
    }
    params = bench.put(std::vector<ParamView>{view});
    MuonScalars group;
    group.rate = 0.01f;
    group.decay = 0.001f;
    groups = bench.put(std::vector<MuonScalars>{group});
    AdamScalars scalars;
    scalars.rate = 0.01f;
    scalars.decay = 0.001f;
    adam = bench.put(std::vector<AdamScalars>{scalars});
    sum = bench.put(std::vector<Vote>{Vote{1, kFingerprint, 0, 0, 0}});
  }

  /// @param from, to  the dtypes of `matrix` and `normal`.
  void make_matrices(DType from, DType to) {
    owned = {{0, rows, cols}};
    placed = {{0, rows, cols, 0, 0, 0}};
    matrix = make_matrix(from);
    normal = make_matrix(to);
  }
  MatrixBatch make_matrix(DType dtype) {
    const int64_t m = owned[0].short_side(), n = owned[0].long_side(), size = size_of(dtype);
    const int64_t ld = bench.ops().leading_dimension(n, dtype);
    // The position in the matrix determines the value of an element, so values do not depend on the
    // padding.
    const auto dense = bench_values(7, dtype, elements());
    std::vector<unsigned char> padded(static_cast<size_t>(size * m * ld));
    for (int64_t row = 0; row < m; ++row)
      std::copy_n(dense.begin() + size * row * n, size * n, padded.begin() + size * row * ld);
    return {bench.put(padded), dtype, m, n, ld, 1, m * ld};
  }

  /// Returns the data that the passes have written, without row padding.
  std::vector<unsigned char> result() {
    std::vector<unsigned char> out;
    const auto add = [&](const void* from, int64_t count, int64_t size, int64_t stride) {
      if (!from) return;
      std::vector<unsigned char> bytes(static_cast<size_t>(count * stride));
      bench.get(bytes.data(), from, std::ssize(bytes));
      for (auto row = bytes.begin(); row != bytes.end(); row += stride)
        out.insert(out.end(), row, row + size);
    };
    const std::pair<const void*, int64_t> dense[] = {{view.param, size_of(view.param_dtype)},
                                                     {view.master, 4},
                                                     {view.remainder, 2},
                                                     {view.momentum, 4},
                                                     {view.variance, 4},
                                                     {other, 2}};
    for (const auto& [from, size] : dense) add(from, 1, size * elements(), size * elements());
    for (const MatrixBatch& m : {matrix, normal})
      add(m.data, m.rows, size_of(m.dtype) * m.cols, size_of(m.dtype) * m.ld);
    return out;
  }
};

struct Pass {
  const char* name;
  int64_t bytes;  // bytes that the pass must read and write for each element
  Data data;
  void (*enqueue)(ElementwiseWorkload& s);
};

void commit_muon(ElementwiseWorkload& s) {
  s.ops.commit_muon(s.stream, s.blocks, {.params = s.params, .groups = s.groups},
                    {.data = s.message, .dtype = DType::kBF16},
                    {.sum = s.sum, .world = 1, .fingerprint = kFingerprint});
}

void pack(ElementwiseWorkload& s) {
  s.ops.pack_direction(s.stream, s.blocks, {.params = s.params, .groups = s.groups},
                       {.data = s.other, .dtype = DType::kBF16}, s.findings);
}

void commit_adamw(ElementwiseWorkload& s) {
  s.ops.commit_adamw(s.stream, s.list, {}, {.params = s.params, .adam = s.adam},
                     {.sum = s.sum, .world = 1, .fingerprint = kFingerprint});
}

void pack_tall(ElementwiseWorkload& s) {
  s.ops.pack(s.stream, s.placed, s.owned, &s.matrix, {.data = s.other, .dtype = DType::kBF16},
             s.findings);
}

void normalize(ElementwiseWorkload& s) {
  s.ops.normalize(s.stream, s.matrix, s.normal, {}, s.findings);
}

constexpr Pass kPasses[] = {
    {"copy", 4, Data::kMuon,
     [](ElementwiseWorkload& s) { s.ops.copy(s.stream, s.other, s.message, 2 * s.elements()); }},
    {"pack", 8, Data::kMuon, pack},
    {"scan", 2, Data::kMuon,
     [](ElementwiseWorkload& s) { s.ops.scan(s.stream, s.list, s.params, s.findings); }},
    {"check_masters", 6, Data::kMuon,
     [](ElementwiseWorkload& s) { s.ops.check_masters(s.stream, s.list, s.params, s.findings); }},
    {"commit", 22, Data::kMuon, commit_muon},
    {"commit remainder", 20, Data::kRemainder, commit_muon},
    {"commit stochastic", 16, Data::kStochastic, commit_muon},
    {"adamw", 28, Data::kAdamW, commit_adamw},
    {"unpack tall", 4, Data::kTall,
     [](ElementwiseWorkload& s) {
       s.ops.unpack(s.stream, s.placed, s.owned, &s.matrix,
                    {.data = s.message, .dtype = DType::kBF16});
     }},
    {"pack tall", 4, Data::kTall, pack_tall},
    {"normalize", 6, Data::kMatrix, normalize}};

/// The passes for a trainer with f32 weights on a device that iterates in f32.
constexpr Pass kPlainPasses[] = {{"pack", 10, Data::kPlainMuon, pack},
                                 {"commit", 22, Data::kPlainMuon, commit_muon},
                                 {"adamw", 28, Data::kPlainAdamW, commit_adamw},
                                 {"pack tall", 6, Data::kPlainTall, pack_tall},
                                 {"normalize", 8, Data::kPlainMatrix, normalize}};

/// Runs the pass once. Returns the number of bytes that differ from the result of the host's
/// portable pass.
int64_t wrong(DeviceReport& report, int64_t elements, const Provider& provider, const Pass& pass) {
  const Provider host = {"host", [] { return host::make_host_device({1, true}); }};
  std::vector<unsigned char> results[2];
  for (const bool reference : {true, false}) {
    Workbench bench(reference ? host : provider, report);
    ElementwiseWorkload workload(bench, pass.data, std::min<int64_t>(elements, int64_t{1} << 20));
    pass.enqueue(workload);
    bench.finish();
    results[reference] = workload.result();
  }
  int64_t out = 0;
  for (size_t i = 0; i < results[0].size(); ++i) out += results[0][i] != results[1][i];
  return out;
}

void measure(const Arguments& a, DeviceReport& report) {
  const Provider provider = present_providers(report).front();
  Workbench common(provider, report);
  const Filler filler(common);
  double copy_rate = 0;  // the rate of the first pass, which is a copy
  for (const Pass& pass : kPasses) {
    Workbench bench(provider, report);
    ElementwiseWorkload workload(bench, pass.data, a.elements);
    std::vector<TimedWork> works;
    works.emplace_back(
        bench, filler, [&](int64_t) { pass.enqueue(workload); }, pass.name);
    time_in_turns(a, filler, works);
    const Times& times = works.front().times();
    const double rate =
        static_cast<double>(pass.bytes * workload.elements()) / median_of(times.ms) * 1e-6;
    if (copy_rate == 0) copy_rate = rate;
    report.add(joined<Cell>({{cell::word(pass.name), cell::count(workload.rows),
                              cell::count(workload.cols), cell::count(pass.bytes)},
                             time_cells(times),
                             {cell::number(rate, 1), cell::number(rate / copy_rate, 3)}}),
               wrong(report, a.elements, provider, pass));
  }
}

int run(const Arguments& a) {
  if (const int skipped = skip_without_gpu(a.device, a.json)) return skipped;
  DeviceReport report(
      a,
      joined<Table::Column>({{{"pass", "pass", Table::Align::kLeft, 17},
                              {"rows", "rows", Table::Align::kRight, 5},
                              {"cols", "cols", Table::Align::kRight, 5},
                              {"bytes_per_element", "B/element"}},
                             time_columns(),
                             {{"gbps", "GB/s", Table::Align::kRight, 8}, {"of_copy", "of copy"}}}));
  report.title = fmt::format(
      "Elementwise passes over about {} elements, bf16 with f32 masters except where noted,",
      a.elements);
  report.notes =
      "of copy: of the rate of a copy on the device; #wrong: bytes that differ from the host's";
  report.fields = {{"elements", fmt::format("{}", a.elements)}};
  return report.run([&] { measure(a, report); });
}

}  // namespace

PassTime time_pass(DeviceReport& report, const Provider& provider, const std::string& name,
                   int64_t footprint) {
  const auto named = [&](const Pass& p) { return name == p.name; };
  const Pass* pass = std::find_if(std::begin(kPasses), std::end(kPasses), named);
  const Pass* const plain = std::find_if(std::begin(kPlainPasses), std::end(kPlainPasses), named);
  if (report.arguments.device == "host" && plain != std::end(kPlainPasses)) pass = plain;
  Workbench bench(provider, report);
  ElementwiseWorkload workload(bench, pass->data, std::max<int64_t>(1, footprint / pass->bytes));
  PassTime out;
  out.ms = time_repeated(bench, report.arguments.iters, [&] { pass->enqueue(workload); });
  out.bytes = pass->bytes * workload.elements();
  out.wrong = wrong(report, std::min<int64_t>(workload.elements(), 1 << 14), provider, *pass);
  return out;
}

void add_bench_elementwise(CLI::App& bench, Work& work) {
  auto* command = bench.add_subcommand(
      "elementwise", "packs, scans, commits and the normalization, compared with a copy");
  auto a = std::make_shared<Arguments>();
  with_default(*command, "--elements", a->elements, "of the parameter",
               CLI::Range(int64_t{1}, int64_t{1} << 32));
  add_device_options(*command, *a);
  command->footer("Example: muonrt bench elementwise --device cuda --elements 268435456");
  command->callback([=, &work] { work = [=] { return run(*a); }; });
}

}  // namespace muonrt::tool
