#include <fmt/format.h>

#include <cmath>

#include "muonrt/bench_device.hpp"
#include "muonrt/command.hpp"
#include "muonrt/gpu.hpp"

namespace muonrt::tool {

namespace {

struct Arguments : DeviceArguments {
  std::vector<std::string> shapes = {"256x256", "256x1024", "1024x1024"};
  std::string dtype = "bf16";
};

struct Shape {
  int64_t m, n;
};

Shape parse(const std::string& text) {
  const size_t x = text.find('x');
  if (x == std::string::npos)
    throw CLI::ValidationError("--shapes", text + " is not rows x columns");
  return {std::stoll(text.substr(0, x)), std::stoll(text.substr(x + 1))};
}

/// The three products of a Newton-Schulz step: A = X X^T, B = b A + c A A, X' = a X + B X.
enum class Kind { kGram, kPolynomial, kApply };
constexpr const char* kNames[] = {"X X^T", "b A + c A A", "a X + B X"};
constexpr float kB = -1.5f, kC = 0.5f, kA = 1.875f;

struct Scene {
  MatrixBatch x, a, out;
  std::vector<unsigned char> x_values, a_values;
  Product product;
};

MatrixBatch matrix(Workbench& bench, int64_t rows, int64_t cols, DType dtype) {
  MatrixBatch out;
  out.dtype = dtype;
  out.rows = rows;
  out.cols = cols;
  out.ld = bench.ops().leading_dimension(cols, dtype);
  out.count = 1;
  out.stride = rows * out.ld;
  out.data = bench.take(out.stride * size_of(dtype));
  return out;
}

std::vector<unsigned char> fill(Workbench& bench, const MatrixBatch& to, uint64_t seed,
                                bool symmetric) {
  auto values = bench_values(seed, to.dtype, to.rows * to.ld);
  const auto size = static_cast<size_t>(size_of(to.dtype));
  for (int64_t i = 0; symmetric && i < to.rows; ++i) {
    for (int64_t j = 0; j < i; ++j)
      std::memcpy(values.data() + static_cast<size_t>(i * to.ld + j) * size,
                  values.data() + static_cast<size_t>(j * to.ld + i) * size, size);
  }
  bench.put(to.data, values.data(), std::ssize(values));
  return values;
}

Scene make_scene(Workbench& bench, Kind kind, const Shape& s, DType dtype) {
  Scene out;
  out.x = matrix(bench, s.m, s.n, dtype);
  out.a = matrix(bench, s.m, s.m, dtype);
  out.out = matrix(bench, s.m, kind == Kind::kApply ? s.n : s.m, dtype);
  out.x_values = fill(bench, out.x, 1, false);
  out.a_values = fill(bench, out.a, 2, true);
  Product& p = out.product;
  p.c = out.out;
  p.symmetric = kind != Kind::kApply;
  p.alpha = kind == Kind::kPolynomial ? kC : 1.0f;
  p.a = kind == Kind::kGram ? out.x : out.a;
  p.b = kind == Kind::kPolynomial ? out.a : out.x;
  p.transpose_b = kind == Kind::kGram;
  if (kind != Kind::kGram) {
    p.d = kind == Kind::kPolynomial ? out.a : out.x;
    p.beta = kind == Kind::kPolynomial ? kB : kA;
  }
  const int64_t k = kind == Kind::kGram ? s.n : s.m;
  bench.ops().reserve(p.c.rows, p.c.cols, k, dtype);
  return out;
}

/// Elements that are further from the product in f64 than its roundings allow: 400 places drawn,
/// the corners among them.
int64_t wrong(Workbench& bench, const Scene& s, DType dtype) {
  const Product& p = s.product;
  std::vector<unsigned char> got(static_cast<size_t>(p.c.stride * size_of(dtype)));
  bench.get(got.data(), p.c.data, std::ssize(got));
  const auto& left = p.a.data == s.x.data ? s.x_values : s.a_values;
  const auto& right = p.b.data == s.x.data ? s.x_values : s.a_values;
  const auto& added = p.d.data == s.x.data ? s.x_values : s.a_values;
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
      const double a = bench_load(left.data(), dtype, i * p.a.ld + k);
      const double b =
          bench_load(right.data(), dtype, p.transpose_b ? j * p.b.ld + k : k * p.b.ld + j);
      sum += a * b;
      size += std::abs(a * b);
    }
    sum *= double{p.alpha};
    if (p.d.data) sum += double{p.beta} * bench_load(added.data(), dtype, i * p.d.ld + j);
    const double error = std::abs(sum - bench_load(got.data(), dtype, i * p.c.ld + j));
    // Products summed in f32, in any order: half a unit each of them could lose.
    const double allowed =
        2 * unit * std::abs(sum) + 0x1p-24 * static_cast<double>(p.a.cols) * size;
    out += !(error <= allowed);
  }
  return out;
}

int run(const Arguments& a) {
  if (const int skipped = skip_without_gpu(a.device, a.json)) return skipped;
  const DType dtype = a.dtype == "f32" ? DType::kF32 : DType::kBF16;
  Table table({{"provider", "provider", Table::Align::kLeft, 9},
               {"product", "product", Table::Align::kLeft, 12},
               {"rows", "rows"},
               {"cols", "cols"},
               {"min_ms", "min ms", Table::Align::kRight, 9},
               {"median_ms", "median ms", Table::Align::kRight, 9},
               {"tflops", "TFLOP/s", Table::Align::kRight, 8},
               {"wrong", "#wrong"}});
  int64_t total = 0;
  std::string described;
  for (const Provider& provider : present_providers(a.device, a.index, a.threads)) {
    for (const std::string& text : a.shapes) {
      const Shape shape = parse(text);
      for (const Kind kind : {Kind::kGram, Kind::kPolynomial, Kind::kApply}) {
        Workbench bench(provider.make());
        if (described.empty()) described = bench.device().describe();
        const Scene scene = make_scene(bench, kind, shape, dtype);
        const auto times = bench.time(a.warmup, a.iters,
                                      [&] { bench.ops().multiply(bench.stream(), scene.product); });
        const int64_t bad = wrong(bench, scene, dtype);
        const double flops = 2.0 * static_cast<double>(scene.product.c.rows) *
                             static_cast<double>(scene.product.c.cols) *
                             static_cast<double>(scene.product.a.cols);
        const double middle = median_of(times);
        total += bad;
        table.add({cell::word(provider.name), cell::word(kNames[static_cast<int>(kind)]),
                   cell::count(shape.m), cell::count(shape.n),
                   cell::number(*std::min_element(times.begin(), times.end()), 4),
                   cell::number(middle, 4), cell::number(flops / middle * 1e-9, 3),
                   cell::count(bad)});
      }
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
  command->add_option("--shapes", a->shapes, "of X, short side first: rows x columns")
      ->delimiter(',')
      ->capture_default_str();
  command->add_option("--dtype", a->dtype, "bf16 or f32")
      ->check(CLI::IsMember({"bf16", "f32"}))
      ->capture_default_str();
  add_device_options(*command, *a);
  command->footer("Example: muonrt bench gemm --device cuda --shapes 4096x4096,4096x11008");
  command->callback([=, &work] { work = [=] { return run(*a); }; });
}

}  // namespace muonrt::tool
