#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "muonrt/bench_device.hpp"
#include "muonrt/bench_predict.hpp"
#include "muonrt/bench_shapes.hpp"
#include "muonrt/command.hpp"
#include "muonrt/gpu.hpp"

namespace muonrt::tool {

namespace {

struct Arguments : DeviceArguments {
  std::vector<std::string> shapes = {"256x256", "256x1024", "1024x1024"};
  std::string dtype = "bf16";
  bool predict = false;
};

/// The three products of a Newton-Schulz step: A = X X^T, B = b A + c A A, X' = a X + B X.
enum class Kind { kGram, kPolynomial, kApply };
constexpr const char* kNames[] = {"X X^T", "b A + c A A", "a X + B X"};
constexpr double kMostPlainFlops = 2e11;  // of plain loops, which are slow
constexpr float kB = -1.5f, kC = 0.5f, kA = 1.875f;

/// What X and A hold, the same for all providers.
struct Values {
  std::vector<unsigned char> x, a;
};

struct Scene {
  std::string provider;
  std::unique_ptr<Workbench> bench;
  MatrixBatch x, a, out;
  Product product;
};

PredictedProduct predicted(Kind kind, const BenchShape& s) {
  const bool apply = kind == Kind::kApply;
  return {s.rows, apply ? s.cols : s.rows, kind == Kind::kGram ? s.cols : s.rows, s.count, !apply};
}
double flops_of(const PredictedProduct& p) {
  return 2.0 * static_cast<double>(p.m) * static_cast<double>(p.n) * static_cast<double>(p.k) *
         static_cast<double>(p.count);
}

MatrixBatch matrix(Workbench& bench, int64_t rows, int64_t cols, int64_t count, DType dtype) {
  MatrixBatch out;
  out.dtype = dtype;
  out.rows = rows;
  out.cols = cols;
  out.ld = bench.ops().leading_dimension(cols, dtype);
  out.count = count;
  out.stride = rows * out.ld;
  out.data = bench.take(count * out.stride * size_of(dtype));
  return out;
}

/// Puts values into a batch, made where `values` is empty.
void fill(Workbench& bench, const MatrixBatch& to, uint64_t seed, bool symmetric,
          std::vector<unsigned char>& values) {
  const auto size = static_cast<size_t>(size_of(to.dtype));
  if (values.empty()) {
    values = bench_values(seed, to.dtype, to.count * to.stride);
    for (int64_t i = 0; symmetric && i < to.count * to.rows; ++i) {
      const int64_t row = i % to.rows, first = (i - row) * to.ld;
      for (int64_t j = 0; j < row; ++j)
        std::memcpy(values.data() + static_cast<size_t>(first + row * to.ld + j) * size,
                    values.data() + static_cast<size_t>(first + j * to.ld + row) * size, size);
    }
  }
  bench.put(to.data, values.data(), std::ssize(values));
}

Scene make_scene(const Provider& provider, Kind kind, const BenchShape& s, DType dtype,
                 Values& values) {
  Scene out;
  out.provider = provider.name;
  out.bench = std::make_unique<Workbench>(provider.make());
  Workbench& bench = *out.bench;
  const PredictedProduct sizes = predicted(kind, s);
  out.x = matrix(bench, s.rows, s.cols, s.count, dtype);
  out.a = matrix(bench, s.rows, s.rows, s.count, dtype);
  out.out = matrix(bench, sizes.m, sizes.n, s.count, dtype);
  fill(bench, out.x, 1, false, values.x);
  fill(bench, out.a, 2, true, values.a);
  Product& p = out.product;
  p.c = out.out;
  p.symmetric = sizes.symmetric;
  p.alpha = kind == Kind::kPolynomial ? kC : 1.0f;
  p.a = kind == Kind::kGram ? out.x : out.a;
  p.b = kind == Kind::kPolynomial ? out.a : out.x;
  p.transpose_b = sizes.symmetric;
  if (kind != Kind::kGram) {
    p.d = kind == Kind::kPolynomial ? out.a : out.x;
    p.beta = kind == Kind::kPolynomial ? kB : kA;
  }
  bench.ops().reserve(sizes.m, sizes.n, sizes.k, dtype);
  return out;
}

/// Elements that are further from the product in f64 than its roundings allow: 400 places drawn,
/// the corners among them, of the last matrix.
int64_t wrong(const Scene& s, const Values& values, DType dtype) {
  const Product& p = s.product;
  const int64_t size_of_one = size_of(dtype);
  std::vector<unsigned char> got(static_cast<size_t>(p.c.stride * size_of_one));
  const auto last = [&](const MatrixBatch& m) { return (m.count - 1) * m.stride * size_of_one; };
  s.bench->get(got.data(), static_cast<const char*>(p.c.data) + last(p.c), std::ssize(got));
  const auto values_of = [&](const MatrixBatch& m) {
    return (m.data == s.x.data ? values.x : values.a).data() + last(m);
  };
  const unsigned char* const left = values_of(p.a);
  const unsigned char* const right = values_of(p.b);
  const unsigned char* const added = p.d.data ? values_of(p.d) : nullptr;
  const double unit = dtype == DType::kF32 ? 0x1p-24 : 0x1p-9;
  int64_t out = 0;
  for (int64_t draw = 0; draw < 400; ++draw) {
    const auto pick = [&](uint64_t seed, int64_t size) {
      if (draw < 4) return (draw >> (seed & 1)) & 1 ? size - 1 : int64_t{0};
      return static_cast<int64_t>((bench_value(seed, draw) * 0.5 + 0.5) *
                                  static_cast<double>(size));
    };
    const int64_t i = pick(10, p.c.rows), j = pick(11, p.c.cols);
    double sum = 0, size = 0;
    for (int64_t k = 0; k < p.a.cols; ++k) {
      const double a = bench_load(left, dtype, i * p.a.ld + k);
      const double b = bench_load(right, dtype, p.transpose_b ? j * p.b.ld + k : k * p.b.ld + j);
      sum += a * b;
      size += std::abs(a * b);
    }
    sum *= double{p.alpha};
    if (p.d.data) sum += double{p.beta} * bench_load(added, dtype, i * p.d.ld + j);
    const double error = std::abs(sum - bench_load(got.data(), dtype, i * p.c.ld + j));
    // Products summed in f32, in any order: half a unit each of them could lose.
    const double allowed =
        2 * unit * std::abs(sum) + 0x1p-24 * static_cast<double>(p.a.cols) * size;
    out += !(error <= allowed);
  }
  return out;
}

Table make_table() {
  return Table({{"provider", "provider", Table::Align::kLeft, 9},
                {"product", "product", Table::Align::kLeft, 12},
                {"rows", "rows"},
                {"cols", "cols"},
                {"count", "count"},
                {"min_ms", "min ms", Table::Align::kRight, 9},
                {"median_ms", "median ms", Table::Align::kRight, 9},
                {"tflops", "TFLOP/s", Table::Align::kRight, 8},
                {"predicted_tflops", "H200 pred.", Table::Align::kRight, 8},
                {"wrong", "#wrong"}});
}

/// @param times  none: predictions alone.
void add_row(Table& table, const std::string& provider, Kind kind, const BenchShape& s, bool bf16,
             const std::vector<double>& times, int64_t bad) {
  const PredictedProduct product = predicted(kind, s);
  const auto rate = [&](double ms) { return cell::number(flops_of(product) / ms * 1e-9, 3); };
  const double expected = bf16 ? predicted_ms(provider, product).value_or(NAN) : NAN;
  const bool ran = !times.empty();
  table.add({cell::word(provider), cell::word(kNames[static_cast<int>(kind)]), cell::count(s.rows),
             cell::count(s.cols), cell::count(s.count),
             ran ? cell::number(*std::min_element(times.begin(), times.end()), 4) : cell::nothing(),
             ran ? cell::number(median_of(times), 4) : cell::nothing(),
             ran ? rate(median_of(times)) : cell::nothing(), rate(expected),
             ran ? cell::count(bad) : cell::nothing()});
}

/// All providers, taking turns. @return  elements that are wrong.
int64_t measure(const Arguments& a, const std::vector<Provider>& providers, Kind kind,
                const BenchShape& shape, DType dtype, Table& table, std::string& described) {
  Values values;
  std::vector<Scene> scenes;
  std::vector<std::function<double()>> runs;
  for (const Provider& provider : providers) {
    if (provider.plain && flops_of(predicted(kind, shape)) > kMostPlainFlops) continue;
    scenes.push_back(make_scene(provider, kind, shape, dtype, values));
  }
  for (const Scene& s : scenes) {
    if (described.empty()) described = s.bench->device().describe();
    runs.push_back([&s] {
      return s.bench->time_once([&s] { s.bench->ops().multiply(s.bench->stream(), s.product); });
    });
  }
  const auto times = alternate(a.warmup, a.iters, runs);
  int64_t total = 0;
  for (size_t i = 0; i < scenes.size(); ++i) {
    const int64_t bad = wrong(scenes[i], values, dtype);
    total += bad;
    add_row(table, scenes[i].provider, kind, shape, dtype == DType::kBF16, times[i], bad);
  }
  return total;
}

int run(const Arguments& a) {
  const auto shapes = bench_shapes(a.shapes);
  if (!a.predict) {
    if (const int skipped = skip_without_gpu(a.device, a.json)) return skipped;
  }
  const DType dtype = a.dtype == "f32" ? DType::kF32 : DType::kBF16;
  Table table = make_table();
  int64_t total = 0;
  std::string described = a.predict ? "no device: predictions alone" : "";
  const auto list = a.predict ? providers(a) : present_providers(a);
  for (const BenchShape& shape : shapes) {
    for (const Kind kind : {Kind::kGram, Kind::kPolynomial, Kind::kApply}) {
      if (!a.predict) {
        total += measure(a, list, kind, shape, dtype, table, described);
        continue;
      }
      for (const Provider& provider : list)
        add_row(table, provider.name, kind, shape, dtype == DType::kBF16, {}, 0);
    }
  }
  return finish_bench(
      a,
      fmt::format("Products of a Newton-Schulz step, {}, random values, on {}\nTFLOP/s as if no "
                  "symmetric half were saved; #wrong of 400 elements beyond their roundings",
                  a.dtype, described),
      {{"device", json_text(described)}, {"dtype", json_text(a.dtype)}}, table, total);
}

}  // namespace

void add_bench_gemm(CLI::App& bench, Work& work) {
  auto* command = bench.add_subcommand("gemm", "the products of a Newton-Schulz step, by provider");
  auto a = std::make_shared<Arguments>();
  command->add_option("--shapes", a->shapes, std::string("of X: ") + kShapesHelp)
      ->delimiter(',')
      ->capture_default_str();
  command->add_option("--dtype", a->dtype, "bf16 or f32")
      ->check(CLI::IsMember({"bf16", "f32"}))
      ->capture_default_str();
  command->add_flag("--predict", a->predict, "what is expected of an H200; nothing runs");
  add_device_options(*command, *a);
  command->footer("Example: muonrt bench gemm --device cuda --shapes 4096x4096,4096x11008");
  command->callback([=, &work] { work = [=] { return run(*a); }; });
}

}  // namespace muonrt::tool
