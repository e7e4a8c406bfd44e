// The acceptance test of symmetric products. It uses the matrix sizes of real models on a GPU, and
// small sizes in the emulator. It checks that results are bitwise identical on all grids and in
// repeated runs. In random rows, it computes the errors relative to float64, and compares them with
// the errors of the vendor's library.

#include <catch2/catch.hpp>
#include <cmath>
#include <functional>

#include "cuda/symmetric/symmetric_cases.hpp"
#include "support/tolerances.hpp"

using namespace muonrt;
using namespace cuda_test;

namespace {

struct Size {
  int64_t n, k, count = 1;
  bool with_d = false;

  std::string name() const {
    return cat(n, " x ", n, " x ", k, ", ", count, " matrices", with_d ? ", with D" : "");
  }
};

std::vector<Size> sizes() {
  if (is_emulated()) return {{130, 90, 3}, {97, 200, 1, true}, {390, 150, 1, true}};
  return {{2048, 2048, 1, true}, {2048, 4096, 3},      {2048, 1000, 8, true},
          {4096, 4096, 1, true}, {4095, 1000, 3},      {768, 2048, 8},
          {381, 4095, 8, true},  {1025, 333, 8, true}, {8192, 4096, 1}};
}

/// Returns numbers of reserved SMs for a GPU with 132 SMs: the number that a communicator needs,
/// half of the SMs, and all SMs except two. The emulated GPU has only two SMs.
std::vector<int> reserved_sms(SymmetricProvider provider) {
  if (provider != SymmetricProvider::kSm90) return {0};
  return is_emulated() ? std::vector{0, kAllButTwo} : std::vector{0, 8, 66, kAllButTwo};
}
const int kRuns = is_emulated() ? 3 : 20;

float to_float(uint16_t bits, DType dtype) {
  return dtype == DType::kBF16 ? to_f32(bf16{bits}) : to_f32(f16{bits});
}

/// Returns random numbers with absolute values from 2^-8 to 1, so that the bits of a sum depend on
/// the order of its terms.
std::vector<uint16_t> elements(DType dtype, uint64_t seed, int64_t n) {
  std::vector<uint16_t> out(static_cast<size_t>(n));
  for (size_t i = 0; i < out.size(); ++i) {
    const auto bits = static_cast<uint32_t>(bits_at(seed, static_cast<int64_t>(i)) >> 40);
    const uint32_t sign = bits & 0x8000u, binade = bits & 7u, digits = bits >> 3;
    out[i] = static_cast<uint16_t>(dtype == DType::kBF16
                                       ? sign | (119u + binade) << 7 | (digits & 0x7fu)
                                       : sign | (7u + binade) << 10 | (digits & 0x3ffu));
  }
  return out;
}

/// Errors of results, compared with float64, in the random rows.
struct Errors {
  double worst_of_bound = 0;  // largest error divided by the allowed error
  // The largest error excludes the diagonal, whose sums are far larger. The mean is over all
  // elements.
  double largest = 0, mean = 0;
};

/// A product whose operands all devices of the program can use.
class Trial {
 public:
  Trial(const Size& size, DType dtype)
      : size_(size),
        memory_(make_device()),
        ld_(memory_.ops().leading_dimension(size.n, dtype)),
        in_ld_(memory_.ops().leading_dimension(size.k, dtype)),
        a_(elements(dtype, 21, size.count * size.n * in_ld_)) {
    const auto view = [&](void* data, int64_t cols, int64_t ld) {
      return MatrixBatch{data, dtype, size.n, cols, ld, size.count, size.n * ld};
    };
    product_.a = view(memory_.put(a_), size.k, in_ld_);
    product_.b = product_.a;
    if (size.with_d) {
      d_ = elements(dtype, 22, total());
      product_.d = view(memory_.put(d_), size.n, ld_);
      product_.beta = 0.5f;
    }
    c_ = Buffer(*memory_.device, 2 * total());
    got_ = Buffer::shared(*memory_.device, 2 * total());
    product_.c = view(c_.data(), size.n, ld_);
    product_.transpose_b = product_.symmetric = true;
    product_.alpha = -0x1p-4f;  // with this factor, f16 can represent all results
  }

  int64_t total() const { return size_.count * size_.n * ld_; }
  /// Computes C. First fills C's memory, including the gaps, with NaN.
  const uint16_t* run(Machine& by) {
    by.ops().reserve(size_.n, size_.n, size_.k, product_.a.dtype);
    by.ops().fill(by.on(), c_.data(), 0xff, c_.bytes());
    by.ops().multiply(by.on(), product_);
    by.ops().copy(by.on(), got_.data(), c_.data(), c_.bytes());
    by.finish();
    return got_.as<uint16_t>();
  }
  std::vector<uint16_t> result(Machine& by) {
    const uint16_t* const got = run(by);
    return {got, got + total()};
  }

  /// Returns the errors in the first and in the last matrix.
  Errors errors(const std::vector<uint16_t>& got) const {
    Errors e;
    double sum = 0;
    int64_t seen = 0;
    const auto sample = [&](int64_t matrix, int64_t row) {
      for (int64_t col = 0; col < size_.n; ++col) {
        const auto [expected, magnitude] = element_of(matrix, row, col);
        const double value = at(got, (matrix * size_.n + row) * ld_ + col);
        const double error = std::abs(value - expected);
        const double allowed =
            tolerance::tensor_product(size_.k, magnitude, expected, product_.a.dtype);
        // A NaN counts as the largest error.
        e.worst_of_bound = std::fmax(e.worst_of_bound, error >= 0 ? error / allowed : HUGE_VAL);
        if (row != col) e.largest = std::fmax(e.largest, error);
        sum += error;
        ++seen;
      }
    };
    constexpr int64_t kRows = 6;
    for (int64_t matrix = 0; matrix < size_.count; matrix += std::max<int64_t>(size_.count - 1, 1))
      for (int64_t i = 0; i < kRows; ++i) sample(matrix, row_of(i));
    e.mean = sum / static_cast<double>(seen);
    return e;
  }

  /// Returns the number of elements that were not written or differ from their mirror image.
  int64_t unlike(const std::vector<uint16_t>& got) const {
    constexpr int64_t kBlock = 64;  // number of rows and columns of a block that fits into caches
    int64_t out = 0;
    for (int64_t m = 0; m < size_.count; ++m) {
      const uint16_t* const c = got.data() + m * size_.n * ld_;
      for (int64_t rows = 0; rows < size_.n; rows += kBlock)
        for (int64_t cols = 0; cols <= rows; cols += kBlock)
          for (int64_t r = rows; r < std::min(rows + kBlock, size_.n); ++r)
            for (int64_t j = cols; j < std::min(cols + kBlock, r); ++j)
              out += c[r * ld_ + j] == 0xffffu || c[r * ld_ + j] != c[j * ld_ + r];
    }
    return out;
  }

 private:
  /// Returns the first row, the last row, or a row between them.
  int64_t row_of(int64_t i) const {
    if (i < 2) return i * (size_.n - 1);
    return static_cast<int64_t>(bits_at(23, i) % static_cast<uint64_t>(size_.n));
  }
  double at(const std::vector<uint16_t>& from, int64_t i) const {
    return static_cast<double>(to_float(from[static_cast<size_t>(i)], product_.a.dtype));
  }
  /// Returns an element in float64, and the sum of the absolute values of its terms.
  std::pair<double, double> element_of(int64_t matrix, int64_t row, int64_t col) const {
    const int64_t first = matrix * size_.n;
    double sum = 0, magnitude = 0;
    for (int64_t i = 0; i < size_.k; ++i) {
      const double term = at(a_, (first + row) * in_ld_ + i) * at(a_, (first + col) * in_ld_ + i);
      sum += term;
      magnitude += std::abs(term);
    }
    sum *= static_cast<double>(product_.alpha);
    magnitude *= std::abs(static_cast<double>(product_.alpha));
    if (!size_.with_d) return {sum, magnitude};
    // Only the upper triangle of D is read.
    const double d = static_cast<double>(product_.beta) *
                     at(d_, (first + std::min(row, col)) * ld_ + std::max(row, col));
    return {sum + d, magnitude + std::abs(d)};
  }

  Size size_;
  Machine memory_;
  int64_t ld_, in_ld_;
  std::vector<uint16_t> a_, d_;
  Buffer c_, got_;
  Product product_;
};

/// Runs the product on every grid in turn. Returns the number of runs after which the memory of C
/// differs from `expected`.
int64_t runs_unlike(Trial& trial, SymmetricProvider provider,
                    const std::vector<uint16_t>& expected) {
  std::vector<std::unique_ptr<Machine>> machines;
  for (const int reserved : reserved_sms(provider))
    machines.push_back(std::make_unique<Machine>(make_device(provider, reserved)));
  int64_t out = 0;
  for (int run = 0; run < kRuns; ++run) {
    const uint16_t* const got = trial.run(*machines[static_cast<size_t>(run) % machines.size()]);
    out += std::memcmp(got, expected.data(), 2 * expected.size()) != 0;
  }
  return out;
}

}  // namespace

TEST_CASE(
    "symmetric acceptance: results are symmetric, as close to float64 as the vendor's, and have "
    "the same bits on every grid and in every run",
    "[cuda]") {
  // The allowed ratio to the vendor's errors is above 1, because the sums have a different order.
  constexpr double kOfVendor = 1.05;
  const auto providers = symmetric_providers();
  for (const Size& size : sizes())
    for (const DType dtype : {DType::kBF16, DType::kF16}) {
      Trial trial(size, dtype);
      Machine vendor(make_device());
      const Errors theirs = trial.errors(trial.result(vendor));
      INFO(size.name() << ", " << name_of(dtype));
      CHECK(theirs.worst_of_bound <= 1);
      for (const SymmetricProvider provider : providers) {
        INFO(name_of(provider));
        Machine machine(make_device(provider));
        const std::vector<uint16_t> ours = trial.result(machine);
        CHECK(trial.unlike(ours) == 0);
        const Errors errors = trial.errors(ours);
        CHECK(errors.worst_of_bound <= 1);
        CHECK(errors.largest <= kOfVendor * theirs.largest);
        CHECK(errors.mean <= kOfVendor * theirs.mean);
        CHECK(runs_unlike(trial, provider, ours) == 0);
      }
    }
}

// The batch and the grid determine which tile computes an element. Random values show whether all
// tiles add the terms in the same order.
TEST_CASE("symmetric acceptance: a matrix is bitwise identical by itself and in a batch",
          "[cuda]") {
  struct Shape {
    int64_t m, n, k, count;
    bool symmetric = true;
  };
  // The shapes are those of X X^T, of polynomials of X X^T, and of the products of these
  // polynomials with X. Only the vendor's library computes products with X.
  const std::vector<Shape> shapes =
      is_emulated()
          ? std::vector<Shape>{{70, 70, 130, 5},
                               {130, 130, 90, 5},
                               {70, 70, 1030, 5},
                               {390, 390, 150, 3},
                               {48, 90, 48, 4, false}}
          : std::vector<Shape>{
                {128, 128, 4096, 64},  {384, 384, 2048, 20},        {512, 512, 512, 32},
                {768, 768, 2048, 24},  {768, 2048, 768, 24, false}, {1024, 1024, 1024, 16},
                {1152, 1152, 4096, 4}, {2048, 2048, 2048, 8},       {2048, 7168, 2048, 4, false},
                {4096, 4096, 4096, 3}, {4095, 1000, 4095, 3, false}};
  // The device for a batch, and the device for a single matrix.
  using Devices = std::pair<std::unique_ptr<Device>, std::unique_ptr<Device>>;
  std::vector<std::function<Devices()>> makers = {
      [] { return Devices(make_device(), make_device()); }};
  for (const SymmetricProvider provider : symmetric_providers())
    makers.push_back([provider] {
      return Devices(make_device(provider), make_device(provider, reserved_sms(provider).back()));
    });
  for (const Shape& s : shapes) {
    for (const DType dtype : {DType::kBF16, DType::kF16}) {
      for (size_t maker = 0; maker < (s.symmetric ? makers.size() : 1); ++maker) {
        Devices devices = makers[maker]();
        Machine machine(std::move(devices.first)), other(std::move(devices.second));
        const auto operand = [&](uint64_t seed, int64_t rows, int64_t cols) {
          const int64_t ld = machine.ops().leading_dimension(cols, dtype);
          void* const data = machine.put(elements(dtype, seed, s.count * rows * ld));
          return MatrixBatch{data, dtype, rows, cols, ld, s.count, rows * ld};
        };
        Product p;
        p.a = operand(31, s.m, s.k);
        p.b = s.symmetric ? p.a : operand(32, s.k, s.n);
        p.c = operand(33, s.m, s.n);
        p.transpose_b = p.symmetric = s.symmetric;
        p.alpha = 0x1p-4f;
        const int64_t size = s.m * p.c.ld;
        machine.ops().fill(machine.on(), p.c.data, 0xff, 2 * s.count * size);
        machine.ops().multiply(machine.on(), p);
        machine.finish();
        for (const int64_t i : {int64_t{0}, s.count / 2, s.count - 1}) {
          CAPTURE(s.m, s.n, s.k, s.count, i, name_of(dtype), maker);
          Product alone = p;
          for (MatrixBatch* m : {&alone.a, &alone.b, &alone.c}) {
            m->data = static_cast<char*>(m->data) + 2 * i * m->stride;
            m->count = 1;
          }
          const auto* const at = static_cast<const uint16_t*>(alone.c.data);
          const std::vector<uint16_t> batched = machine.get(at, size);
          other.ops().fill(other.on(), alone.c.data, 0xff, 2 * size);
          other.ops().multiply(other.on(), alone);
          other.finish();
          CHECK(batched[0] != 0xffffu);
          CHECK((other.get(at, size) == batched));
        }
      }
    }
  }
}
