#include <catch2/catch.hpp>

#include "cuda/machine.hpp"

// Tallies, hashes and Lanczos's method: byte by byte what the host computes.

using namespace muonrt;
using namespace cuda_test;

namespace {

struct Results {
  std::vector<Tally> tallies;
  std::vector<Lanczos> lanczos;
  std::vector<uint64_t> hashes;
};

template <class T>
Bytes bytes_of(const std::vector<T>& v) {
  const auto* at = reinterpret_cast<const unsigned char*>(v.data());
  return Bytes(at, at + v.size() * sizeof(T));
}

Results run(std::unique_ptr<Device> device, DType dtype, int64_t m, int64_t n) {
  Machine machine(std::move(device));
  constexpr int64_t kCount = 3;
  const int64_t ld = n + 3, stride = m * ld + 2;
  Bytes all(static_cast<size_t>(kCount * stride * size_of(dtype)));
  for (int64_t i = 0; i < kCount * stride; ++i) {
    const float x = value_at(3, i) * static_cast<float>(1 << (i % 9)) * 0.01f;
    if (dtype == DType::kF16) {
      const f16 half = to_f16(x);
      std::memcpy(all.data() + 2 * i, &half, 2);
    } else {
      set_value(all, dtype, i, x);
    }
  }
  // Something that is not finite, behind the matrices that Lanczos's method gets.
  const MatrixBatch x{machine.put(all), dtype, m, n, ld, kCount, stride};
  Bytes bad = all;
  std::memset(bad.data(), 0xff, static_cast<size_t>(size_of(dtype)));
  MatrixBatch y = x;
  y.data = machine.put(bad);
  const Bytes low = values(9, DType::kBF16, kCount * stride);
  auto* tallies = machine.put(std::vector<Tally>(3 * kCount));
  machine.ops().tally(machine.on(), x, nullptr, tallies);
  machine.ops().tally(machine.on(), y, nullptr, tallies + kCount);
  if (dtype == DType::kBF16) {
    const auto* halves = reinterpret_cast<const uint16_t*>(machine.put(low));
    machine.ops().tally(machine.on(), x, halves, tallies + 2 * kCount);
  }
  const int64_t floats = kCount * lanczos_space(m, n).floats;
  auto* space = machine.put(std::vector<float>(static_cast<size_t>(floats), -1.0f));
  auto* out = machine.put(std::vector<Lanczos>(kCount, Lanczos{}));
  machine.ops().lanczos(machine.on(), x, space, out);
  auto* hashes = machine.put(std::vector<uint64_t>(3));
  const int64_t bytes = std::ssize(all);
  machine.ops().hash_memory(machine.on(), x.data, bytes, hashes);
  machine.ops().hash_memory(machine.on(), static_cast<char*>(x.data) + 2, bytes - 3, hashes + 1);
  machine.ops().hash_memory(machine.on(), static_cast<char*>(x.data) + 4, 1, hashes + 2);
  machine.finish();
  return {machine.get(tallies, 3 * kCount), machine.get(out, kCount), machine.get(hashes, 3)};
}

}  // namespace

TEST_CASE("cuda health: tallies, hashes and tridiagonal matrices have the host's bits", "[cuda]") {
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16}) {
    for (const auto& [m, n] : {std::pair<int64_t, int64_t>{1, 1}, {3, 40}, {33, 70}, {300, 301}}) {
      if (m > 100 && dtype != DType::kBF16) continue;  // slow where emulated
      INFO(name_of(dtype) << ", " << m << " x " << n);
      const Results expected = run(make_host(2), dtype, m, n),
                    got = run(make_device(true), dtype, m, n);
      CHECK(bytes_of(got.tallies) == bytes_of(expected.tallies));
      CHECK(bytes_of(got.lanczos) == bytes_of(expected.lanczos));
      CHECK(got.hashes == expected.hashes);
    }
  }
}
