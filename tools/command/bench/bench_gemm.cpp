#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>

#include "command/bench/bench_parts.hpp"
#include "command/bench/bench_timer.hpp"
#include "command/bench/bench_values.hpp"
#include "command/command.hpp"
#include "command/gpu.hpp"
#include "command/validators.hpp"

namespace muonrt::tool {

namespace {

struct Arguments : DeviceArguments {
  std::string values = "random";
  // For tests of the check: the indices of two elements of each result. The first becomes NaN, and
  // the second becomes a different number. -1: no element.
  int64_t plant_nan = -1, plant = -1;
};

/// A product of a Newton-Schulz step: alpha times the product of two operands, plus beta times the
/// second operand. The operands are X and a symmetric A.
struct Kind {
  const char* name;
  bool left_is_x, right_is_x;
  float alpha, beta;
  bool symmetric() const { return left_is_x == right_is_x; }
};
constexpr Kind kKinds[] = {{"X X^T", true, true, 1, 0},
                           {"b A + c A A", false, false, 0.5f, -1.5f},
                           {"a X + B X", false, true, 1, 1.875f}};

/// `sets` copies of a batch. The runs use them in turn, so that a copy is no longer in the cache
/// when it is used again.
struct Operand {
  MatrixBatch first;
  int64_t bytes = 0;  // distance between copies
  Buffer memory;

  Operand(Workbench& bench, int64_t rows, int64_t cols, int64_t count, DType dtype, int64_t sets) {
    first = {nullptr, dtype, rows, cols, bench.ops().leading_dimension(cols, dtype), count, 0};
    first.stride = rows * first.ld;
    bytes = (count * first.stride * size_of(dtype) + 255) / 256 * 256;
    memory = Buffer(bench.device(), sets * bytes);
    first.data = memory.data();
  }
  MatrixBatch set(int64_t index) const {
    MatrixBatch out = first;
    out.data = static_cast<unsigned char*>(out.data) + index * bytes;
    return out;
  }
};

/// The operands: X and a symmetric A. All providers and products use the same memory, which all of
/// their devices can access.
struct Inputs {
  bool zeros;
  int64_t sets;
  Operand x, a;

  Inputs(Workbench& bench, const Filler& filler, const BenchShape& s, DType dtype, bool all_zeros)
      : zeros(all_zeros),
        sets(filler.empty()
                 ? 1
                 : std::clamp<int64_t>(
                       kColdBytes / (s.count * s.rows * (s.rows + s.cols) * size_of(dtype)) + 1, 1,
                       kMaxRepeats)),
        x(bench, s.rows, s.cols, s.count, dtype, sets),
        a(bench, s.rows, s.rows, s.count, dtype, sets) {
    for (const Operand* to : {&x, &a}) {
      const MatrixBatch m = to->first;
      bench.put_values(m.data, dtype, m.count * m.stride,
                       [&](int64_t index) { return value(m, index); });
      for (int64_t i = 1; i < sets; ++i)
        bench.ops().copy(bench.stream(), to->set(i).data, m.data, to->bytes);
    }
    bench.finish();
  }
  /// Returns element `index` of the memory of x.first or a.first, before it is rounded.
  float value(const MatrixBatch& m, int64_t index) const {
    if (zeros) return 0;
    if (m.data == x.first.data) return bench_value(1, index);
    const int64_t row = index / m.ld % m.rows, col = index % m.ld;
    return bench_value(2, col >= row ? index : index + (col - row) * m.ld + row - col);
  }
};

/// The expected value of an element in float64, and its tolerances.
struct Sample {
  int64_t matrix, row, col;
  double value, allowed, allowed_in_parts;
};

/// Returns about 400 elements of all matrices together, but at least 9 of each matrix, including
/// its corners.
std::vector<Sample> samples_of(const Product& p, const Inputs& inputs) {
  const auto element = [&](const MatrixBatch& m, int64_t matrix, int64_t row, int64_t col) {
    return double{bench_rounded(inputs.value(m, matrix * m.stride + row * m.ld + col), m.dtype)};
  };
  const auto drawn = [](uint64_t seed, int64_t matrix, int64_t draw, int64_t size) {
    if (draw < 2) return draw == 0 ? 0 : size - 1;
    return static_cast<int64_t>(bench_word(seed, matrix * 400 + draw) %
                                static_cast<uint64_t>(size));
  };
  const double of_each = 400 / static_cast<double>(p.c.count);
  const int64_t lines = std::max<int64_t>(static_cast<int64_t>(std::sqrt(of_each)), 3);
  std::vector<Sample> out;
  for (int64_t draw = 0; draw < p.c.count * lines * lines; ++draw) {
    Sample at{draw / (lines * lines), 0, 0, 0, 0, 0};
    at.row = drawn(10, at.matrix, draw / lines % lines, p.c.rows);
    at.col = drawn(11, at.matrix, draw % lines, p.c.cols);
    double size = 0;
    for (int64_t k = 0; k < p.a.cols; ++k) {
      const double term =
          element(p.a, at.matrix, at.row, k) *
          (p.transpose_b ? element(p.b, at.matrix, at.col, k) : element(p.b, at.matrix, k, at.col));
      at.value += term;
      size += std::abs(term);
    }
    at.value *= double{p.alpha};
    if (p.d.data) at.value += double{p.beta} * element(p.d, at.matrix, at.row, at.col);
    // The tolerance covers f32 sums in any order. Each term of a sum may lose half a unit of the
    // sum.
    at.allowed = 2 * unit_of(p.c.dtype) * std::abs(at.value) +
                 0x1p-24 * static_cast<double>(p.a.cols) * size;
    // Each part and each sum of parts is rounded, and is at most the sum of the terms' absolute
    // values.
    at.allowed_in_parts = at.allowed + 2 * unit_of(p.c.dtype) * size;
    out.push_back(at);
  }
  return out;
}

/// Returns the number of non-finite elements plus the number of samples whose error exceeds the
/// tolerance.
/// @param in_parts  whether a provider may have rounded sums over parts of the inner dimension to
///     the dtype of the result.
int64_t wrong(Workbench& bench, const MatrixBatch& c, const std::vector<Sample>& samples,
              bool in_parts) {
  int64_t out = bench.not_finite(c), line = -1;
  std::vector<unsigned char> got(static_cast<size_t>(c.ld * size_of(c.dtype)));
  for (const Sample& at : samples) {
    const int64_t first = at.matrix * c.stride + at.row * c.ld;
    if (first != line)
      bench.get(got.data(), static_cast<const unsigned char*>(c.data) + first * size_of(c.dtype),
                std::ssize(got));
    line = first;
    const double value = bench_load(got.data(), c.dtype, at.col);
    const double allowed = in_parts ? at.allowed_in_parts : at.allowed;
    out += std::isfinite(value) && std::abs(at.value - value) > allowed;
  }
  return out;
}

/// The products that one provider computes.
struct GemmWorkload {
  Provider provider;
  Workbench bench;
  Operand out;
  std::vector<Product> products;  // one for each copy of the operands

  GemmWorkload(const Provider& from, DeviceReport& report, const Kind& kind, const Inputs& inputs)
      : provider(from),
        bench(from, report),
        out(bench, inputs.a.first.rows, (kind.symmetric() ? inputs.a : inputs.x).first.cols,
            inputs.a.first.count, inputs.a.first.dtype, inputs.sets) {
    // Fill the result with NaN, because the memory may contain another provider's result.
    bench.ops().fill(bench.stream(), out.first.data, 0xff, inputs.sets * out.bytes);
    for (int64_t i = 0; i < inputs.sets; ++i) {
      const MatrixBatch x = inputs.x.set(i), a = inputs.a.set(i);
      Product p;
      p.c = out.set(i);
      p.transpose_b = kind.symmetric();
      p.symmetric = kind.symmetric() && !from.best;
      p.alpha = kind.alpha;
      p.beta = kind.beta;
      p.a = kind.left_is_x ? x : a;
      p.b = kind.right_is_x ? x : a;
      if (kind.beta != 0) p.d = p.b;
      products.push_back(p);
    }
    const Product& p = products.front();
    bench.ops().reserve(p.c.rows, p.c.cols, p.a.cols, p.c.dtype);
  }
  void run(int64_t number) {
    bench.ops().multiply(bench.stream(),
                         products[static_cast<size_t>(number % std::ssize(products))]);
  }
  /// Overwrites one element of the first result.
  void plant(int64_t index, unsigned char byte) {
    if (index < 0) return;
    const int64_t one = size_of(out.first.dtype);
    auto* const memory = static_cast<unsigned char*>(out.first.data);
    bench.ops().fill(bench.stream(), memory + index * one, byte, one);
  }
};

/// Measures all providers in turn.
void measure(DeviceReport& report, const std::vector<Provider>& list, const Filler& filler,
             const Inputs& inputs, const Kind& kind, const BenchShape& s, const Arguments& a) {
  const int64_t n = kind.symmetric() ? s.rows : s.cols, k = kind.left_is_x ? s.cols : s.rows;
  const double flops =
      2.0 * static_cast<double>(s.count * s.rows) * static_cast<double>(n) * static_cast<double>(k);
  std::vector<std::unique_ptr<GemmWorkload>> workloads;
  std::vector<TimedWork> works;
  for (const Provider& provider : list) {
    if (provider.portable && flops > kMaxPortableFlops) continue;
    on_behalf_of(provider.name, [&] {
      workloads.push_back(std::make_unique<GemmWorkload>(provider, report, kind, inputs));
    });
    GemmWorkload& workload = *workloads.back();
    works.emplace_back(
        workload.bench, filler, [&workload](int64_t number) { workload.run(number); },
        provider.name, provider.portable);
  }
  if (workloads.empty()) return;
  time_in_turns(a, filler, works);
  const std::vector<Sample> samples = samples_of(workloads.front()->products.front(), inputs);
  for (size_t i = 0; i < workloads.size(); ++i) {
    GemmWorkload& workload = *workloads[i];
    const Times& times = works[i].times();
    const int64_t bad = on_behalf_of(workload.provider.name, [&] {
      workload.plant(a.plant_nan, 0xff);
      workload.plant(a.plant, 0x3c);
      return wrong(workload.bench, workload.out.first, samples, workload.provider.best);
    });
    report.add(joined<Cell>({{cell::word(workload.provider.name), cell::word(kind.name),
                              cell::count(s.rows), cell::count(s.cols), cell::count(s.count)},
                             time_cells(times),
                             {cell::number(flops / median_of(times.ms) * 1e-9, 3)}}),
               bad);
  }
}

int run(const Arguments& a) {
  const auto shapes = bench_shapes(a.shapes);
  if (const int skipped = skip_without_gpu(a.device, a.json)) return skipped;
  DeviceReport report(a, joined<Table::Column>({{{"provider", "provider", Table::Align::kLeft, 13},
                                                 {"product", "product", Table::Align::kLeft, 12},
                                                 {"rows", "rows", Table::Align::kRight, 5},
                                                 {"cols", "cols", Table::Align::kRight, 5},
                                                 {"count", "count"}},
                                                time_columns(),
                                                {{"tflops", "TFLOP/s", Table::Align::kRight, 8}}}));
  report.title = fmt::format("Products of a Newton-Schulz step, {}, {},", a.dtype,
                             a.values == "zeros"
                                 ? "ALL ZEROS (no measure of speed: less power than random values)"
                                 : "random values");
  report.notes =
      "TFLOP/s as if no symmetric half were saved; #wrong: elements that are not finite, and of\n"
      "about 400 samples those beyond their rounding errors";
  if (a.device == "cuda")
    report.notes += "; cublaslt-best: the fastest algorithm for this batch, without the mirror";
  report.fields = product_fields(a);
  report.fields.emplace_back("values", json_text(a.values));
  return report.run([&] {
    const auto list = present_providers(report, true);
    Workbench common(list.front(), report);
    const Filler filler(common);
    for (const BenchShape& shape : shapes) {
      const Inputs inputs(common, filler, shape, dtype_named(a.dtype), a.values == "zeros");
      for (const Kind& kind : kKinds) measure(report, list, filler, inputs, kind, shape, a);
    }
  });
}

}  // namespace

ProductTimes time_products(DeviceReport& report, const Provider& provider, const BenchShape& shape,
                           DType dtype) {
  Workbench common(provider, report);
  const Filler filler(common);
  const Inputs inputs(common, filler, shape, dtype, false);
  ProductTimes out;
  for (const Kind& kind : kKinds) {
    GemmWorkload workload(provider, report, kind, inputs);
    int64_t number = 0;
    const double ms =
        time_repeated(workload.bench, report.arguments.iters, [&] { workload.run(number++); });
    (kind.symmetric() ? out.symmetric_ms : out.general_ms) += kind.symmetric() ? ms / 2 : ms;
    workload.run(0);
    workload.bench.finish();
    const std::vector<Sample> samples = samples_of(workload.products.front(), inputs);
    out.wrong += wrong(workload.bench, workload.out.first, samples, provider.best);
  }
  return out;
}

void add_bench_gemm(CLI::App& bench, Work& work) {
  auto* command = bench.add_subcommand("gemm", "the products of a Newton-Schulz step, by provider");
  auto a = std::make_shared<Arguments>();
  a->shapes = {"256x256", "256x1024", "1024x1024"};
  add_product_options(*command, *a);
  with_default(*command, "--values", a->values,
               "random (normal), or zeros, which show the influence of power on the speed",
               CLI::IsMember({"random", "zeros"}));
  command->add_option("--plant", a->plant)->group("");
  command->add_option("--plant-nan", a->plant_nan)->group("");
  add_device_options(*command, *a);
  command->footer("Example: muonrt bench gemm --device cuda --shapes 4096x4096,4096x11008");
  command->callback([=, &work] {
    providers(*a, true);  // rejects unknown names
    work = [=] { return run(*a); };
  });
}

}  // namespace muonrt::tool
