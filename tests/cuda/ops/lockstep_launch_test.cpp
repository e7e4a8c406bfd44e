// How many launches several shapes take, as the emulated GPU counts them.

#include <catch2/catch.hpp>

#include "control.hpp"
#include "cuda/symmetric/symmetric_cases.hpp"
#include "unit/algo/lockstep_cases.hpp"

using namespace muonrt;
using namespace cuda_test;

namespace {

/// Of Newton-Schulz once; those for sm_90a alone may begin early.
emulator::Launched launches_of(SymmetricProvider provider, const std::vector<runner::Job>& jobs) {
  auto backend = backends::cuda(/*naive_products=*/true, provider);
  const emulator::Launched before = emulator::launched();
  runner::orthogonalize(backend, jobs);
  const emulator::Launched now = emulator::launched();
  return {now.kernels - before.kernels, now.blocks - before.blocks, now.early - before.early};
}

/// Five shapes, two of three steps and three of five.
std::vector<runner::Job> five_shapes() {
  const auto all = lockstep_cases::jobs();
  std::vector<runner::Job> out;
  const auto& pe = textbook::lists::kPolarModded;
  for (const auto& [m, n] :
       {std::pair<int64_t, int64_t>(40, 50), {12, 30}, {64, 64}, {130, 140}, {1, 9}}) {
    const textbook::List list(pe.begin(), pe.begin() + (m < 64 ? 3 : 5));
    out.push_back({runner::settings_of(list, 1.05, DType::kBF16), runner::standard(list),
                   DType::kBF16, lockstep_cases::batch(m, n, 1, DType::kBF16)});
  }
  return out;
}

}  // namespace

TEST_CASE("lockstep launches: five shapes take as many symmetric launches as the longest alone",
          "[emulated]") {
  const auto jobs = five_shapes();
  int64_t longest = 0, symmetric = 0;
  for (const runner::Job& job : jobs) {
    const int64_t alone = launches_of(SymmetricProvider::kSm90, {job}).early;
    CHECK(alone == 2 * job.method.steps);  // X X^T and the polynomial
    longest = std::max(longest, alone);
    symmetric += alone;
  }
  CHECK(launches_of(SymmetricProvider::kSm90, jobs).early == longest);
  // The kernels for sm_80 are launched as often: what is saved is the same.
  int64_t all = 0;
  for (const runner::Job& job : jobs) all += launches_of(SymmetricProvider::kSm80, {job}).kernels;
  CHECK(all - launches_of(SymmetricProvider::kSm80, jobs).kernels == symmetric - longest);
}

TEST_CASE("lockstep launches: more shapes than a launch takes go out in two", "[emulated]") {
  auto jobs = five_shapes();
  const auto more = five_shapes();
  jobs.insert(jobs.end(), more.begin(), more.begin() + 2);
  // Seven in the first three steps, three in the last two.
  CHECK(launches_of(SymmetricProvider::kSm90, jobs).early == 2 * (3 * 2 + 2));
}

TEST_CASE("symmetric launch: SMs left to a communicator make the grid smaller and change no bit",
          "[emulated][bits]") {
  emulator::pretend_sms(12);
  std::vector<Bytes> results;
  for (const auto& [reserved, blocks] :
       {std::pair{0, 12}, {1, 10}, {4, 8}, {8, 4}, {11, 2}, {1000, 2}}) {
    Machine machine(make_cuda_device(0, {.naive_products = true,
                                         .symmetric = SymmetricProvider::kSm90,
                                         .reserved_sms = reserved,
                                         .sm90 = {.tiles = Tiles::kLarge}}));  // a persistent grid
    const int64_t n = 530, k = 90, ld = machine.ops().leading_dimension(k, DType::kBF16);
    const int64_t c_ld = machine.ops().leading_dimension(n, DType::kBF16);
    Product p;
    p.a = {machine.put(values(7, DType::kBF16, 2 * n * ld)), DType::kBF16, n, k, ld, 2, n * ld};
    p.b = p.a;
    p.c = {machine.put(Bytes(static_cast<size_t>(4 * n * c_ld))),
           DType::kBF16,
           n,
           n,
           c_ld,
           2,
           n * c_ld};
    p.transpose_b = p.symmetric = true;
    p.alpha = 0.37f;
    machine.ops().reserve(n, n, k, DType::kBF16);
    const int64_t before = emulator::launched().blocks;
    machine.ops().multiply(machine.on(), p);
    CHECK(emulator::launched().blocks - before == blocks);
    results.push_back(machine.get(static_cast<const unsigned char*>(p.c.data), 4 * n * c_ld));
  }
  emulator::pretend_sms(2);
  for (const Bytes& result : results) CHECK(difference(result, results[0]) == -1);
}
