#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>

#include "base/checked.hpp"
#include "command/bench/bench_device.hpp"
#include "command/bench/bench_gemm_check.hpp"
#include "command/bench/bench_shapes.hpp"
#include "command/bench/bench_timer.hpp"
#include "command/bench/bench_values.hpp"
#include "command/bench/median.hpp"
#include "command/command.hpp"
#include "command/gpu.hpp"

namespace muonrt::tool {

namespace {

struct Arguments : DeviceArguments {
  std::vector<std::string> shapes = {"256x256", "256x1024", "1024x1024"};
  std::string dtype = "bf16";
  // Indices of elements of every result that become NaN or another number before they are looked
  // at: for tests of the check.
  int64_t plant_nan = -1, plant = -1;
};

/// The three products of a Newton-Schulz step: A = X X^T, B = b A + c A A, X' = a X + B X.
enum class Kind { kGram, kPolynomial, kApply };
constexpr const char* kNames[] = {"X X^T", "b A + c A A", "a X + B X"};
constexpr float kB = -1.5f, kC = 0.5f, kA = 1.875f;

/// `count` results m x n, sums of k terms.
struct Sizes {
  int64_t m, n, k, count;
  bool symmetric;

  double flops() const {
    return 2.0 * static_cast<double>(m) * static_cast<double>(n) * static_cast<double>(k) *
           static_cast<double>(count);
  }
};
Sizes sizes_of(Kind kind, const BenchShape& s) {
  const bool apply = kind == Kind::kApply;
  return {s.rows, apply ? s.cols : s.rows, kind == Kind::kGram ? s.cols : s.rows, s.count, !apply};
}

/// Batches of one size at as many places, so that none is in a cache when its turn comes again.
struct Operand {
  MatrixBatch first;
  int64_t bytes = 0;  // from one to the next
  Buffer memory;

  Operand(Workbench& bench, int64_t rows, int64_t cols, int64_t count, DType dtype, int64_t sets) {
    first = {nullptr, dtype, rows, cols, bench.ops().leading_dimension(cols, dtype), count, 0};
    first.stride = rows * first.ld;
    bytes = round_up(count * first.stride * size_of(dtype), 256);
    memory = Buffer(bench.device(), sets * bytes);
    first.data = memory.data();
  }
  MatrixBatch set(int64_t index) const {
    MatrixBatch out = first;
    out.data = static_cast<unsigned char*>(out.data) + index * bytes;
    return out;
  }
};

/// X and A, made once for all providers and products; their devices reach the same memory.
struct Inputs {
  bool zeros;
  int64_t sets;
  Operand x, a;

  Inputs(Workbench& bench, const Filler& filler, const BenchShape& s, DType dtype, bool all_zeros)
      : zeros(all_zeros),
        sets(filler.there()
                 ? std::clamp<int64_t>(
                       kColdBytes / (s.count * s.rows * (s.rows + s.cols) * size_of(dtype)) + 1, 1,
                       kMostRepeats)
                 : 1),
        x(bench, s.rows, s.cols, s.count, dtype, sets),
        a(bench, s.rows, s.rows, s.count, dtype, sets) {
    fill(bench, x, value_of(x.first));
    fill(bench, a, value_of(a.first));
  }
  /// What an operand, x or a, is filled with.
  ValueOf value_of(const MatrixBatch& m) const {
    return zeros ? zero_value : m.data == x.first.data ? general_value : symmetric_value;
  }

 private:
  void fill(Workbench& bench, const Operand& to, ValueOf value) const {
    const MatrixBatch m = to.first;
    bench.put_values(m.data, m.dtype, m.count * m.stride,
                     [&](int64_t index) { return value(m, index); });
    for (int64_t i = 1; i < sets; ++i)
      bench.ops().copy(bench.stream(), to.set(i).data, m.data, to.bytes);
    bench.finish();
  }
};

/// One provider's.
struct Scene {
  const Provider* provider;
  std::unique_ptr<Workbench> bench;
  std::unique_ptr<Operand> out;
  std::vector<Product> products;  // by set

  Scene(const Provider& from, BenchReport& report, Kind kind, const BenchShape& s,
        const Inputs& inputs)
      : provider(&from), bench(std::make_unique<Workbench>(from, report)) {
    const Sizes sizes = sizes_of(kind, s);
    const DType dtype = inputs.x.first.dtype;
    out = std::make_unique<Operand>(*bench, sizes.m, sizes.n, s.count, dtype, inputs.sets);
    // NaN: memory may hold what another provider has left there.
    bench->ops().fill(bench->stream(), out->first.data, 0xff, inputs.sets * out->bytes);
    for (int64_t i = 0; i < inputs.sets; ++i) {
      const MatrixBatch x = inputs.x.set(i), a = inputs.a.set(i);
      Product p;
      p.c = out->set(i);
      p.symmetric = sizes.symmetric && !from.best;
      p.alpha = kind == Kind::kPolynomial ? kC : 1.0f;
      p.a = kind == Kind::kGram ? x : a;
      p.b = kind == Kind::kPolynomial ? a : x;
      p.transpose_b = sizes.symmetric;
      if (kind != Kind::kGram) {
        p.d = kind == Kind::kPolynomial ? a : x;
        p.beta = kind == Kind::kPolynomial ? kB : kA;
      }
      products.push_back(p);
    }
    bench->ops().reserve(sizes.m, sizes.n, sizes.k, dtype);
  }
  void run(int64_t number) {
    bench->ops().multiply(bench->stream(),
                          products[static_cast<size_t>(number % std::ssize(products))]);
  }
  /// Bytes of an element of the first set's result.
  void plant(int64_t index, unsigned char byte) {
    if (index < 0) return;
    const int64_t one = size_of(out->first.dtype);
    auto* const memory = static_cast<unsigned char*>(out->first.data);
    bench->ops().fill(bench->stream(), memory + index * one, byte, one);
  }
};

Table make_table() {
  std::vector<Table::Column> columns = {{"provider", "provider", Table::Align::kLeft, 9},
                                        {"product", "product", Table::Align::kLeft, 12},
                                        {"rows", "rows"},
                                        {"cols", "cols"},
                                        {"count", "count"}};
  for (const Table::Column& column : time_columns()) columns.push_back(column);
  columns.push_back({"tflops", "TFLOP/s", Table::Align::kRight, 8});
  columns.push_back({"wrong", "#wrong"});
  return Table(columns);
}

void add_row(BenchReport& report, const std::string& provider, Kind kind, const BenchShape& s,
             const Times& times, int64_t bad) {
  std::vector<Cell> row = {cell::word(provider), cell::word(kNames[static_cast<int>(kind)]),
                           cell::count(s.rows), cell::count(s.cols), cell::count(s.count)};
  for (const Cell& one : time_cells(times)) row.push_back(one);
  row.push_back(cell::number(sizes_of(kind, s).flops() / median_of(times.ms) * 1e-9, 3));
  row.push_back(cell::count(bad));
  report.add(row, bad);
}

/// All providers, taking turns.
void measure(BenchReport& report, const std::vector<Provider>& list, const Filler& filler,
             const Inputs& inputs, Kind kind, const BenchShape& shape, const Arguments& a) {
  std::vector<std::unique_ptr<Scene>> scenes;
  std::vector<TimedWork> works;
  for (const Provider& provider : list) {
    if (provider.plain && sizes_of(kind, shape).flops() > kMostPlainFlops) continue;
    on_behalf_of(provider.name, [&] {
      scenes.push_back(std::make_unique<Scene>(provider, report, kind, shape, inputs));
    });
    Scene& s = *scenes.back();
    works.emplace_back(
        *s.bench, filler, [&s](int64_t number) { s.run(number); }, provider);
  }
  if (scenes.empty()) return;
  time_in_turns(a, filler, works);
  const GemmCheck check(scenes.front()->products.front(),
                        [&](const MatrixBatch& m) { return inputs.value_of(m); });
  for (size_t i = 0; i < scenes.size(); ++i) {
    Scene& s = *scenes[i];
    s.plant(a.plant_nan, 0xff);
    s.plant(a.plant, 0x3c);
    const int64_t bad = on_behalf_of(s.provider->name, [&] {
      return check.wrong(*s.bench, s.products.front().c, s.provider->best);
    });
    add_row(report, s.provider->name, kind, shape, works[i].times(), bad);
  }
}

int run(const Arguments& a) {
  const auto shapes = bench_shapes(a.shapes);
  providers(a, true);  // checks the names
  if (const int skipped = skip_without_gpu(a.device, a.json)) return skipped;
  const DType dtype = dtype_named(a.dtype);
  BenchReport report(a, make_table());
  report.title = fmt::format("Products of a Newton-Schulz step, {}, {},", a.dtype, named_values(a));
  report.notes =
      "TFLOP/s as if no symmetric half were saved; #wrong elements that are not finite, and beyond "
      "their roundings of some 400 or more that are looked at";
  if (a.device == "cuda")
    report.notes +=
        "\ncublaslt-best: what to measure against, the fastest of the algorithms that cuBLASLt "
        "proposes for just this batch (8, and 8 for its matrices one by one; sums in parts "
        "allowed), found with operands out of L2, in full, no mirror\n"
        "cublaslt: as muonrt uses it, one algorithm for a shape whatever the batch, no sums in "
        "parts, then the mirror";
  report.fields = {{"dtype", json_text(a.dtype)},
                   {"values", json_text(a.values)},
                   {"steady_s", fmt::format("{}", a.steady)},
                   {"tune", json_text(fmt::format("{}", fmt::join(a.tune, ",")))}};
  constexpr Kind kKinds[] = {Kind::kGram, Kind::kPolynomial, Kind::kApply};
  return report.run([&] {
    const auto list = present_providers(report, true);
    Workbench common(list.front(), report);
    const Filler filler(common);
    for (const BenchShape& shape : shapes) {
      const Inputs inputs(common, filler, shape, dtype, a.values == "zeros");
      for (const Kind kind : kKinds) measure(report, list, filler, inputs, kind, shape, a);
    }
  });
}

}  // namespace

void add_bench_gemm(CLI::App& bench, Work& work) {
  auto* command = bench.add_subcommand("gemm", "the products of a Newton-Schulz step, by provider");
  auto a = std::make_shared<Arguments>();
  command->add_option("--shapes", a->shapes, std::string("of X: ") + kShapesHelp)
      ->delimiter(',')
      ->capture_default_str();
  command->add_option("--dtype", a->dtype, "bf16, f16 or f32")
      ->check(CLI::IsMember({"bf16", "f16", "f32"}))
      ->capture_default_str();
  command->add_option("--plant", a->plant)->group("");
  command->add_option("--plant-nan", a->plant_nan)->group("");
  add_product_options(*command, *a);
  add_device_options(*command, *a);
  command->footer("Example: muonrt bench gemm --device cuda --shapes 4096x4096,4096x11008");
  command->callback([=, &work] {
    check_tuning(*a);
    work = [=] { return run(*a); };
  });
}

}  // namespace muonrt::tool
