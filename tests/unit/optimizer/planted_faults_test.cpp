#include <catch2/catch.hpp>
#include <cmath>
#include <cstring>
#include <mutex>

#include "backend/update_rules.hpp"
#include "host/host_stream.hpp"
#include "support/bits_cases.hpp"
#include "support/wrapped_device.hpp"

// Tests that comparing the results of different numbers of ranks detects faults that occur in real
// systems. The tests plant each fault in the ops of the device.

using namespace muonrt;

namespace {

float read(const MatrixBatch& m, int64_t i, int64_t r, int64_t c) {
  const int64_t at = i * m.stride + r * m.ld + c;
  return m.dtype == DType::kF32 ? static_cast<const float*>(m.data)[at]
                                : to_f32(static_cast<const bf16*>(m.data)[at]);
}

void write(const MatrixBatch& m, int64_t i, int64_t r, int64_t c, float x) {
  const int64_t at = i * m.stride + r * m.ld + c;
  if (m.dtype == DType::kF32) {
    static_cast<float*>(m.data)[at] = x;
  } else {
    static_cast<bf16*>(m.data)[at] = to_bf16(x);
  }
}

void enqueue(Stream& stream, host::Task task) {
  dynamic_cast<host::HostStream&>(stream).enqueue(task);
}

/// Adds the squares of the norm separately for each rank's block of columns, like a system that
/// sums over shards.
class NormPerShard : public wrapped::Ops {
 public:
  NormPerShard(muonrt::Ops& inner, int64_t shards) : wrapped::Ops(inner), shards_(shards) {}
  void normalize(Stream& s, const MatrixBatch& in, const MatrixBatch& out, const Normalization& how,
                 Findings*) override {
    enqueue(s, host::Task([in, out, safety = how.safety, shards = shards_] {
              for (int64_t i = 0; i < in.count; ++i) {
                float squares = 0;
                for (int64_t shard = 0; shard < shards; ++shard) {
                  float part = 0;
                  for (int64_t r = 0; r < in.rows; ++r) {
                    for (int64_t c = in.cols * shard / shards; c < in.cols * (shard + 1) / shards;
                         ++c) {
                      part += read(in, i, r, c) * read(in, i, r, c);
                    }
                  }
                  squares += part;
                }
                const float norm = safety * std::sqrt(squares);
                for (int64_t r = 0; r < in.rows; ++r) {
                  for (int64_t c = 0; c < in.cols; ++c)
                    write(out, i, r, c, read(in, i, r, c) / norm);
                }
              }
            }));
  }

 private:
  int64_t shards_;
};

/// Computes products whose order of summation depends on `block`. GEMM libraries do this if they
/// choose their blocking by the leading dimension, or split the inner dimension over threads.
class BlockedProducts : public wrapped::Ops {
 public:
  using wrapped::Ops::Ops;
  void multiply(Stream& s, std::span<const Product> products) override {
    for (const Product& p : products)
      enqueue(s, host::Task([p, block = block_of(p)] { multiply_now(p, block); }));
  }

 protected:
  virtual int64_t block_of(const Product& p) const = 0;

 private:
  static void multiply_now(const Product& p, int64_t block) {
    for (int64_t i = 0; i < p.c.count; ++i) {
      for (int64_t r = 0; r < p.c.rows; ++r) {
        for (int64_t c = 0; c < p.c.cols; ++c) write(p.c, i, r, c, element(p, i, r, c, block));
      }
    }
  }
  static float element(const Product& p, int64_t i, int64_t r, int64_t c, int64_t block) {
    float total = 0;
    for (int64_t begin = 0; begin < p.a.cols; begin += block) {
      float part = 0;
      for (int64_t k = begin; k < std::min(p.a.cols, begin + block); ++k) {
        part += read(p.a, i, r, k) * (p.transpose_b ? read(p.b, i, c, k) : read(p.b, i, k, c));
      }
      total += part;
    }
    float out = p.alpha * total;
    if (p.d.data && p.beta != 0) out += p.beta * read(p.d, i, r, c);
    return r == c ? out + p.gamma : out;
  }
};

/// Simulates a library whose results depend on the leading dimension, and increases this dimension
/// by `extra`.
class LeadingDimension : public BlockedProducts {
 public:
  LeadingDimension(muonrt::Ops& inner, int64_t extra) : BlockedProducts(inner), extra_(extra) {}
  int64_t leading_dimension(int64_t cols, DType dtype) const override {
    return inner_.leading_dimension(cols, dtype) + 16 * extra_;
  }

 protected:
  int64_t block_of(const Product& p) const override { return 4 + p.a.ld / 16; }

 private:
  int64_t extra_;
};

/// Computes products whose inner dimension is split over the threads.
class TwoThreads : public BlockedProducts {
 public:
  TwoThreads(muonrt::Ops& inner, int64_t threads) : BlockedProducts(inner), threads_(threads) {}

 protected:
  int64_t block_of(const Product& p) const override { return (p.a.cols + threads_ - 1) / threads_; }

 private:
  int64_t threads_;
};

/// Simulates a rank that sends the upper half of each f32 direction without rounding it to bf16.
class CastSkipped : public wrapped::Ops {
 public:
  CastSkipped(muonrt::Ops& inner, bool here) : wrapped::Ops(inner), here_(here) {}
  void pack_direction(Stream& s, std::span<const ShardBlock> blocks, const StepTables& tables,
                      TypedBuffer message, Findings* findings) override {
    inner_.pack_direction(s, blocks, tables, message, findings);
    if (!here_) return;
    enqueue(s, host::Task([blocks, tables, message] {
              for (const ShardBlock& block : blocks) {
                const ParamView& p = tables.params[block.param];
                const MuonScalars& scalars = tables.groups[p.group];
                if (!p.active) continue;
                for (int64_t r = 0; r < block.rows; ++r) {
                  for (int64_t c = 0; c < block.cols; ++c) {
                    const int64_t local = block.local_offset + r * block.local_ld + c;
                    const float g = static_cast<const float*>(p.grad)[local] * scalars.grad_scale;
                    const float u = direction(
                        next_momentum(static_cast<const float*>(p.momentum)[local], g, scalars), g,
                        scalars);
                    uint32_t bits;
                    std::memcpy(&bits, &u, 4);
                    static_cast<bf16*>(message.data)[block.packed_offset + r * block.cols + c] = {
                        static_cast<uint16_t>(bits >> 16)};
                  }
                }
              }
            }));
  }

 private:
  bool here_;
};

/// Returns the tensors of a run with the fault on every rank. `strength` returns the strength of
/// the fault.
template <class Fault, class Strength>
world::Tensors run(const bits::Factors& factors, Strength strength) {
  const world::Case c = bits::make(factors, false, 2);
  std::vector<std::vector<bool>> seen;
  std::mutex mutex;
  world::Tensors out;
  world::on_ranks(c.world, [&](Comm& comm) {
    world::Rank rank(c, comm, [&](const OptimizerSettings& s) {
      return wrapped::with<Fault>(world::host_device(s), strength(c.world, comm.rank(), s));
    });
    StepReport report;
    for (int step = 0; step < c.steps; ++step) rank.step(step, report);
    const std::lock_guard lock(mutex);
    rank.add_to(out, seen);
  });
  return out;
}

/// Returns whether results differ between one rank with one compute thread and 4 ranks with sharded
/// rows and two compute threads.
template <class Fault, class Strength>
bool noticed(Strength strength) {
  return !(run<Fault>({}, strength) == run<Fault>({.mesh = 4, .chunk = 1, .threads = 2}, strength));
}

}  // namespace

TEST_CASE("planted faults: a norm summed per shard is detected", "[bits]") {
  CHECK(noticed<NormPerShard>([](int ranks, int, const auto&) { return int64_t{ranks}; }));
  CHECK_FALSE(noticed<NormPerShard>([](int, int, const auto&) { return int64_t{1}; }));
}

TEST_CASE("planted faults: a leading dimension that depends on the ranks is detected", "[bits]") {
  CHECK(noticed<LeadingDimension>([](int ranks, int, const auto&) { return int64_t{ranks - 1}; }));
  CHECK_FALSE(noticed<LeadingDimension>([](int, int, const auto&) { return int64_t{0}; }));
}

TEST_CASE("planted faults: a product split over threads is detected", "[bits]") {
  CHECK(noticed<TwoThreads>([](int, int, const auto& s) { return int64_t{s.threads}; }));
  CHECK_FALSE(noticed<TwoThreads>([](int, int, const auto&) { return int64_t{1}; }));
}

TEST_CASE("planted faults: a cast skipped on one rank is detected", "[bits]") {
  CHECK(noticed<CastSkipped>([](int, int rank, const auto&) { return rank == 1; }));
  CHECK_FALSE(noticed<CastSkipped>([](int, int, const auto&) { return false; }));
}
