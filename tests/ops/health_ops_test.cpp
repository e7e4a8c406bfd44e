#include <catch2/catch.hpp>
#include <cmath>
#include <cstring>
#include <limits>

#include "algo/spectrum.hpp"
#include "ops/subjects.hpp"
#include "support/numerics/reference_ops.hpp"
#include "unit/algo/newton_schulz_cases.hpp"

using namespace muonrt;
using newton_schulz_cases::eight_spectra;
using newton_schulz_cases::five_step_lists;

namespace {

constexpr double kFivePercent = 0.05;

/// Matrices in a backend's memory. Their padding is NaN.
struct Stored {
  std::shared_ptr<void> memory;
  MatrixBatch batch;

  Stored(backends::Backend& b, DType dtype, const std::vector<reference::Matrix>& of) {
    const int64_t m = of[0].rows, n = of[0].cols, ld = n + 3;
    batch = {nullptr, dtype, m, n, ld, std::ssize(of), m * ld + 5};
    const int64_t bytes = batch.count * batch.stride * size_of(dtype);
    memory = b.memory(bytes);
    std::memset(memory.get(), 0xff, static_cast<size_t>(bytes));
    batch.data = memory.get();
    for (int64_t k = 0; k < batch.count; ++k)
      for (int64_t i = 0; i < m; ++i)
        for (int64_t j = 0; j < n; ++j)
          reference_ops::store(batch.data, dtype, k * batch.stride + i * ld + j,
                               static_cast<float>(of[static_cast<size_t>(k)](i, j)));
  }
};

template <class T>
T* zeros(std::shared_ptr<void>& keeper, backends::Backend& b, int64_t count) {
  keeper = b.memory(count * static_cast<int64_t>(sizeof(T)));
  std::memset(keeper.get(), 0, static_cast<size_t>(count) * sizeof(T));
  return static_cast<T*>(keeper.get());
}

std::vector<Spectrum> spectra_of(backends::Backend& b, DType dtype,
                                 const std::vector<reference::Matrix>& of) {
  const Stored x(b, dtype, of);
  const int64_t floats = lanczos_space(x.batch.rows, x.batch.cols).floats * x.batch.count;
  const auto space = b.memory(floats * 4);
  std::memset(space.get(), 0xff, static_cast<size_t>(floats) * 4);
  std::shared_ptr<void> keeper;
  auto* out = zeros<Lanczos>(keeper, b, x.batch.count);
  b.ops->lanczos(*b.stream, x.batch, static_cast<float*>(space.get()), out);
  b.wait();
  std::vector<Spectrum> all;
  for (int64_t k = 0; k < x.batch.count; ++k) all.push_back(spectrum_of(out[k], x.batch.rows));
  return all;
}

double deviation_of(const std::vector<double>& sigmas) {
  double most = 0;
  for (const double s : sigmas) most = std::max(most, std::fabs(s - 1));
  return most;
}

}  // namespace

TEST_CASE("tally: the sum of squares is exact for every dtype and magnitude", "[ops][health]") {
  for (auto& b : backends::all()) {
    for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16}) {
      std::vector<reference::Matrix> of(2, reference::Matrix(7, 41));
      for (int64_t i = 0; i < 7 * 41; ++i) {
        // Squares of these integers, and their sums, are exact in float64.
        of[0].v[static_cast<size_t>(i)] = static_cast<double>(i % 128) - 64;
        of[1].v[static_cast<size_t>(i)] = std::ldexp(static_cast<double>(i % 2 + 1), -12);
      }
      double sums[2] = {};
      for (size_t k = 0; k < 2; ++k)
        for (const double v : of[k].v) sums[k] += v * v;
      const Stored x(b, dtype, of);
      std::shared_ptr<void> keeper;
      auto* tallies = zeros<Tally>(keeper, b, 2);
      b.ops->tally(*b.stream, x.batch, nullptr, tallies);
      b.wait();
      INFO(b.name << ", " << name_of(dtype));
      CHECK(sum_of_squares(tallies[0].limbs) == sums[0]);
      CHECK(sum_of_squares(tallies[1].limbs) == sums[1]);
      CHECK(std::bit_cast<float>(static_cast<uint32_t>(tallies[0].largest)) == 64.0f);
      CHECK(std::bit_cast<float>(static_cast<uint32_t>(tallies[1].largest)) == 0x1p-11f);
      CHECK(tallies[0].nonfinite == 0);
      // The op adds to the previous value of a tally, so the second call doubles it.
      b.ops->tally(*b.stream, x.batch, nullptr, tallies);
      b.wait();
      CHECK(sum_of_squares(tallies[0].limbs) == 2 * sums[0]);
    }
  }
}

TEST_CASE("tally: the smallest and the largest floats of all exponents are summed exactly",
          "[ops][health]") {
  // Tests 2^e and its adjacent values one by one, because float64 can represent the square of each
  // value, but not the sum of the squares.
  for (int e = -149; e < 128; ++e) {
    const auto power = std::ldexp(1.0f, e);
    for (const float x : {power, -std::nextafter(power, HUGE_VALF)}) {
      if (!std::isfinite(x)) continue;
      const LimbTerm term = limb_term(x);
      Tally t;
      t.limbs[term.limb] += term.low;
      t.limbs[term.limb + 1] += term.middle;
      t.limbs[term.limb + 2] += term.high;
      REQUIRE(term.limb + 2 < kTallyLimbs);
      REQUIRE(sum_of_squares(t.limbs) == static_cast<double>(x) * static_cast<double>(x));
    }
  }
}

TEST_CASE("tally: infinities and NaN are counted and add nothing", "[ops][health]") {
  for (auto& b : backends::all()) {
    for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16}) {
      reference::Matrix m(5, 9);
      for (double& v : m.v) v = 2;
      m(0, 0) = std::numeric_limits<double>::quiet_NaN();
      m(2, 3) = HUGE_VAL;
      m(4, 8) = -HUGE_VAL;
      const Stored x(b, dtype, {m});
      std::shared_ptr<void> keeper;
      auto* t = zeros<Tally>(keeper, b, 1);
      b.ops->tally(*b.stream, x.batch, nullptr, t);
      b.wait();
      INFO(b.name << ", " << name_of(dtype));
      CHECK(t->nonfinite == 3);
      CHECK(sum_of_squares(t->limbs) == 42 * 4);
      CHECK(t->largest >= 0x7f800000);
    }
  }
}

TEST_CASE("hash: depends on every bit and its position, but not on the number of threads",
          "[ops][health]") {
  for (const int64_t bytes : {1, 2, 3, 4, 6, 4099}) {
    std::vector<uint64_t> of_backend;
    for (auto& b : backends::all()) {
      const auto memory = b.memory(bytes);
      auto* at = static_cast<unsigned char*>(memory.get());
      for (int64_t i = 0; i < bytes; ++i) at[i] = static_cast<unsigned char>(i * i + 3);
      std::shared_ptr<void> keeper;
      auto* sum = zeros<uint64_t>(keeper, b, 1);
      const auto hash = [&] {
        *sum = 0;
        b.ops->hash_memory(*b.stream, at, bytes, sum);
        b.wait();
        return *sum;
      };
      const uint64_t before = hash();
      of_backend.push_back(before);
      INFO(b.name << ", " << bytes << " bytes");
      for (int64_t i = 0; i < bytes; i += 97) {
        at[i] ^= 0x10;
        CHECK(hash() != before);
        at[i] ^= 0x10;
      }
      if (bytes > 8) {
        std::swap_ranges(at, at + 4, at + 4);
        CHECK(hash() != before);
      }
    }
    for (const uint64_t h : of_backend) CHECK(h == of_backend[0]);
  }
}

TEST_CASE("lanczos: the largest |sigma - 1| of what Newton-Schulz leaves is within 5% of an SVD",
          "[ops][health][nosan]") {
  auto b = backends::host(2);
  for (const auto& [name, spectrum] : eight_spectra(96)) {
    const reference::Matrix x = reference::rounded(
        reference::assemble(reference::random_svd(96, 160, spectrum, 77)), DType::kF32);
    for (const auto& l : five_step_lists()) {
      const reference::Matrix o =
          reference::rounded(reference::newton_schulz(l.list, l.safety, x), DType::kBF16);
      const double expected = deviation_of(reference::svd(o).s);
      INFO(l.name << ", " << name);
      CHECK(spectra_of(b, DType::kBF16, {o})[0].deviation() ==
            Approx(expected).epsilon(kFivePercent));
    }
  }
}

TEST_CASE("lanczos: finds the ends of known spectra of 1000 rows, including spectra down to zero",
          "[ops][health][nosan]") {
  auto b = backends::host(2);
  const int64_t m = 1024;
  auto spectra = eight_spectra(m);
  std::vector<double> line, half;
  for (int64_t i = 0; i < m; ++i) {
    line.push_back(0.5 * static_cast<double>(i) / static_cast<double>(m - 1));
    half.push_back(i < m / 2 ? 1 : 0);
  }
  spectra.push_back({"line to zero", line});
  spectra.push_back({"half zeros", half});
  for (const auto& [name, spectrum] : spectra) {
    for (const auto& l : five_step_lists()) {
      double norm = 0;
      for (const double s : spectrum) norm += s * s;
      std::vector<double> sigmas;
      reference::Matrix x(m, m);
      for (int64_t i = 0; i < m; ++i) {
        const double s = spectrum[static_cast<size_t>(i)];
        sigmas.push_back(std::fabs(reference::compose(l.list, s / (l.safety * std::sqrt(norm)))));
        x(i, (i + 7) % m) = i % 2 ? sigmas.back() : -sigmas.back();
      }
      INFO(l.name << ", " << name);
      CHECK(spectra_of(b, DType::kF32, {x})[0].deviation() ==
            Approx(deviation_of(sigmas)).epsilon(kFivePercent));
    }
  }
}

TEST_CASE("lanczos: is exact for small, zero and orthogonal matrices, and NaN if an element is NaN",
          "[ops][health]") {
  for (auto& b : backends::all()) {
    INFO(b.name);
    for (const auto& [m, n] : {std::pair<int64_t, int64_t>{1, 1}, {1, 300}, {2, 2}, {5, 9}}) {
      const reference::Matrix x = reference::rounded(reference::gaussian(m, n, 5), DType::kF32);
      const auto sigmas = reference::svd(x).s;
      const Spectrum s = spectra_of(b, DType::kF32, {x})[0];
      CHECK(s.largest == Approx(sigmas.front()).epsilon(1e-4));
      CHECK(s.smallest == Approx(sigmas.back()).epsilon(1e-3));
    }
    const reference::Matrix none(6, 11);
    CHECK(spectra_of(b, DType::kBF16, {none})[0].deviation() == 1.0);
    reference::Matrix unit = reference::identity(70), bad = unit;
    CHECK(spectra_of(b, DType::kF16, {unit})[0].deviation() < 1e-5);
    bad(3, 4) = std::numeric_limits<double>::quiet_NaN();
    const auto both = spectra_of(b, DType::kF32, {bad, unit});
    CHECK(std::isnan(both[0].deviation()));
    CHECK(both[1].deviation() < 1e-5);
  }
}

TEST_CASE("lanczos: bits do not depend on the batch", "[ops][health]") {
  std::vector<reference::Matrix> of;
  for (uint64_t k = 0; k < 3; ++k) of.push_back(reference::gaussian(300, 700, k));
  auto host = backends::host(2);
  const auto together = spectra_of(host, DType::kF32, of);
  for (size_t k = 0; k < 3; ++k) {
    const Spectrum alone = spectra_of(host, DType::kF32, {of[k]})[0];
    CHECK(std::memcmp(&alone, &together[k], sizeof alone) == 0);
  }
}

namespace {

/// Returns the tallies, hashes and tridiagonal matrices of three matrices. The tallies also cover
/// remainders and non-finite values.
ops_test::Results health_of(ops_test::Machine& machine, DType dtype, int64_t m, int64_t n) {
  using namespace ops_test;
  constexpr int64_t kCount = 3;
  const int64_t ld = n + 3, stride = m * ld + 2;
  Bytes all(static_cast<size_t>(kCount * stride * size_of(dtype)));
  for (int64_t i = 0; i < kCount * stride; ++i)
    set_value(all, dtype, i, value_at(3, i) * static_cast<float>(1 << (i % 9)) * 0.01f);
  Bytes bad = all;
  std::memset(bad.data(), 0xff, static_cast<size_t>(size_of(dtype)));
  const MatrixBatch x{machine.put(all), dtype, m, n, ld, kCount, stride};
  MatrixBatch y = x;
  y.data = machine.put(bad);
  auto* tallies = machine.put(std::vector<Tally>(3 * kCount));
  machine.ops().tally(machine.on(), x, nullptr, tallies);
  machine.ops().tally(machine.on(), y, nullptr, tallies + kCount);
  if (dtype == DType::kBF16) {
    const auto* low =
        reinterpret_cast<const uint16_t*>(machine.put(values(9, DType::kBF16, kCount * stride)));
    machine.ops().tally(machine.on(), x, low, tallies + 2 * kCount);
  }
  auto* space = machine.put(
      std::vector<float>(static_cast<size_t>(kCount * lanczos_space(m, n).floats), -1.0f));
  auto* out = machine.put(std::vector<Lanczos>(kCount, Lanczos{}));
  machine.ops().lanczos(machine.on(), x, space, out);
  auto* hashes = machine.put(std::vector<uint64_t>(3));
  const int64_t bytes = std::ssize(all);
  machine.ops().hash_memory(machine.on(), x.data, bytes, hashes);
  machine.ops().hash_memory(machine.on(), static_cast<char*>(x.data) + 2, bytes - 3, hashes + 1);
  machine.ops().hash_memory(machine.on(), static_cast<char*>(x.data) + 4, 1, hashes + 2);
  machine.finish();
  return {bytes_of(machine, tallies, 3 * kCount), bytes_of(machine, out, kCount),
          bytes_of(machine, hashes, 3)};
}

}  // namespace

TEST_CASE("health: tallies, hashes and tridiagonal matrices have the same bits on every backend",
          "[ops][health]") {
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16}) {
    for (const auto& [m, n] : {std::pair<int64_t, int64_t>{1, 1}, {3, 40}, {33, 70}, {300, 301}}) {
      if (m > 100 && dtype != DType::kBF16) continue;  // this is slow on an emulated GPU
      CAPTURE(name_of(dtype), m, n);
      const ops_test::Run run = [&, m = m, n = n](ops_test::Machine& machine) {
        return health_of(machine, dtype, m, n);
      };
      ops_test::check_everywhere(ops_test::of_host(run), run);
    }
  }
}
