#include <catch2/catch.hpp>
#include <cstring>
#include <vector>

#include "base/text.hpp"
#include "mpi/harness.hpp"
#include "muonrt/mpi.h"
#include "muonrt/muonrt.h"

// A trainer's own MPI in place of the built-in exchanges, through the C ABI: it knows its layouts
// and calls MPI_Gatherv and MPI_Scatterv.

using namespace mpi_test;

namespace {

constexpr int kSteps = 4;

void require(muonrt_status_t status) {
  if (status != MUONRT_OK) throw std::runtime_error(muonrt_last_error());
}

struct Matrix {
  int64_t shape[2];
  muonrt_layout_t layout;
};

/// The trainer: a mesh of (size / 2) x 2 where that is even, else of one dimension.
struct Trainer {
  MPI_Comm mpi;
  int ranks = 1, rank = 0;
  int64_t mesh_shape[2];
  muonrt_mesh_t mesh;
  muonrt_placement_t rows_and_columns[2], rows_of_replicas[2], columns[2];
  std::vector<Matrix> matrices;
  int64_t calls = 0;

  explicit Trainer(MPI_Comm comm) {
    MPI_Comm_dup(comm, &mpi);
    MPI_Comm_size(mpi, &ranks);
    MPI_Comm_rank(mpi, &rank);
    mesh_shape[1] = ranks % 2 == 0 ? 2 : 1;
    mesh_shape[0] = ranks / mesh_shape[1];
    muonrt_mesh_init(&mesh);
    mesh.ndim = 2;
    mesh.shape = mesh_shape;
    const muonrt_placement_t replicate = {MUONRT_PLACEMENT_REPLICATE, 0, 0};
    const muonrt_placement_t shard0 = {MUONRT_PLACEMENT_SHARD, 0, 0};
    const muonrt_placement_t shard1 = {MUONRT_PLACEMENT_SHARD, 1, 0};
    rows_and_columns[0] = shard0, rows_and_columns[1] = shard1;
    rows_of_replicas[0] = replicate, rows_of_replicas[1] = shard0;
    columns[0] = shard1, columns[1] = shard1;
    add(13, 9, rows_and_columns);
    add(5, 8, rows_of_replicas);
    add(6, 21, columns);
    add(3, 3, rows_and_columns);
  }
  ~Trainer() { MPI_Comm_free(&mpi); }
  Trainer(const Trainer&) = delete;
  Trainer& operator=(const Trainer&) = delete;

  void add(int64_t rows, int64_t cols, const muonrt_placement_t* placements) {
    Matrix m{{rows, cols}, {}};
    muonrt_layout_init(&m.layout);
    m.layout.mesh = &mesh;
    m.layout.placements = placements;
    matrices.push_back(m);
  }

  std::vector<muonrt_run_t> runs(const Matrix& m, int of_rank, int dim) const {
    muonrt_run_t out[8];
    int64_t count = 0;
    require(muonrt_layout_runs(out, 8, &count, &m.layout, ranks, 2, m.shape, of_rank, dim));
    return {out, out + count};
  }

  /// Calls use(offset in the whole matrix) for each element of a rank, in local order.
  template <class Use>
  void each(const Matrix& m, int of_rank, Use use) const {
    for (const muonrt_run_t& r : runs(m, of_rank, 0)) {
      for (int64_t i = r.begin; i < r.end; ++i) {
        for (const muonrt_run_t& c : runs(m, of_rank, 1)) {
          for (int64_t j = c.begin; j < c.end; ++j) use(i * m.shape[1] + j);
        }
      }
    }
  }

  int numel(const Matrix& m, int of_rank) const {
    int n = 0;
    each(m, of_rank, [&](int64_t) { ++n; });
    return n;
  }

  /// Elements of every rank, and where they begin in a message of all.
  void counts(const Matrix& m, std::vector<int>& count, std::vector<int>& first) const {
    int at = 0;
    for (int r = 0; r < ranks; ++r) {
      count.push_back(numel(m, r));
      first.push_back(at);
      at += count.back();
    }
  }

  static int assign(void* state, int64_t param, const muonrt_assignment_t* facts, int32_t* owner) {
    const auto& self = *static_cast<Trainer*>(state);
    if (facts->world != self.ranks || facts->ndim != 2 || facts->n_holders < 1) return 1;
    *owner = static_cast<int32_t>(param % self.ranks);
    return 0;
  }

  static int gather(void* state, int64_t param, int32_t owner, const void* local, void* full,
                    void*) {
    auto& self = *static_cast<Trainer*>(state);
    const Matrix& m = self.matrices[static_cast<size_t>(param)];
    std::vector<int> count, first;
    self.counts(m, count, first);
    std::vector<uint16_t> all(static_cast<size_t>(first.back() + count.back()));
    MPI_Gatherv(local, count[static_cast<size_t>(self.rank)], MPI_UINT16_T, all.data(),
                count.data(), first.data(), MPI_UINT16_T, owner, self.mpi);
    if (self.rank == owner) {
      for (int r = 0; r < self.ranks; ++r) {
        size_t at = static_cast<size_t>(first[static_cast<size_t>(r)]);
        self.each(m, r, [&](int64_t to) { static_cast<uint16_t*>(full)[to] = all[at++]; });
      }
    }
    ++self.calls;
    return 0;
  }

  static int redistribute(void* state, int64_t param, int32_t owner, const void* full, void* local,
                          void*) {
    auto& self = *static_cast<Trainer*>(state);
    const Matrix& m = self.matrices[static_cast<size_t>(param)];
    std::vector<int> count, first;
    self.counts(m, count, first);
    std::vector<uint16_t> all;
    if (self.rank == owner) {
      for (int r = 0; r < self.ranks; ++r) {
        self.each(m, r,
                  [&](int64_t from) { all.push_back(static_cast<const uint16_t*>(full)[from]); });
      }
    }
    MPI_Scatterv(all.data(), count.data(), first.data(), MPI_UINT16_T, local,
                 count[static_cast<size_t>(self.rank)], MPI_UINT16_T, owner, self.mpi);
    ++self.calls;
    return 0;
  }
};

float number(int64_t param, int64_t element, int64_t step) {
  const auto x = static_cast<uint32_t>(param * 7919 + element * 104729 + (step + 1) * 1299709);
  return static_cast<float>(static_cast<int32_t>(x * 2654435761u)) / 2147483648.0f;
}

struct Result {
  std::vector<std::vector<float>> shards;
  int64_t bytes_sent = 0;
};

Result train(Trainer& t, const muonrt_distributed_config_t* config) {
  Result out;
  MPI_Comm world = MPI_COMM_WORLD;
  muonrt_comm_t* comm = nullptr;
  require(muonrt_comm_create_mpi(&comm, &world, 60000));
  muonrt_group_t group;
  muonrt_group_init(&group, MUONRT_ROLE_MUON);
  muonrt_optimizer_options_t options;
  muonrt_optimizer_options_init(&options);
  options.distributed = config;
  const size_t n = t.matrices.size();
  const char* const names[] = {"a", "b", "c", "d"};
  std::vector<std::vector<float>> grads(n);
  std::vector<muonrt_param_t> params(n);
  out.shards.resize(n);
  for (size_t i = 0; i < n; ++i) {
    const auto p = static_cast<int64_t>(i);
    t.each(t.matrices[i], t.rank, [&](int64_t e) { out.shards[i].push_back(number(p, e, -1)); });
    grads[i].resize(out.shards[i].size() + 1);
    out.shards[i].reserve(1);
    muonrt_param_init(&params[i]);
    params[i].name = names[i];
    params[i].ndim = 2;
    params[i].shape = t.matrices[i].shape;
    params[i].layout = &t.matrices[i].layout;
    params[i].data = out.shards[i].data();
    params[i].grad = grads[i].data();
  }
  muonrt_optimizer_t* optimizer = nullptr;
  require(muonrt_optimizer_create(&optimizer, comm, &options, &group, 1, params.data(),
                                  static_cast<int64_t>(n)));
  for (int step = 0; step < kSteps; ++step) {
    for (size_t i = 0; i < n; ++i) {
      size_t at = 0;
      t.each(t.matrices[i], t.rank,
             [&](int64_t e) { grads[i][at++] = number(static_cast<int64_t>(i), e, step); });
    }
    muonrt_step_t args;
    muonrt_step_init(&args);
    args.lr = 0.02;
    require(muonrt_optimizer_step(optimizer, &args, nullptr));
  }
  muonrt_counters_t counters;
  muonrt_counters_init(&counters);
  require(muonrt_optimizer_counters(optimizer, &counters));
  out.bytes_sent = counters.bytes_sent;
  muonrt_optimizer_destroy(optimizer);
  muonrt_comm_destroy(comm);
  return out;
}

}  // namespace

TEST_CASE("functions: a trainer's own MPI gives the bits of the built-in exchanges", "[mpi]") {
  std::string problem;
  const std::string thrown = attempt([&] {
    Trainer t(MPI_COMM_WORLD);
    const Result built_in = train(t, nullptr);
    if (t.calls != 0) problem += "called without being given ";
    muonrt_distributed_config_t config;
    muonrt_distributed_config_init(&config);
    config.state = &t;
    config.assign = &Trainer::assign;
    config.gather = &Trainer::gather;
    config.redistribute = &Trainer::redistribute;
    for (const int serial : {0, 1}) {
      for (const int prefetch : {0, 1, 3}) {
        config.async_parallelism = !serial;
        config.prefetch_count = prefetch;
        t.calls = 0;
        const Result own = train(t, &config);
        const auto expected = static_cast<int64_t>(2 * kSteps * t.matrices.size());
        if (own.shards != built_in.shards)
          problem += muonrt::cat("differs, serial ", serial, ", prefetch ", prefetch, "; ");
        if (t.calls != expected)
          problem += muonrt::cat("calls, serial ", serial, ", prefetch ", prefetch, "; ");
        if (own.bytes_sent != 0)
          problem += muonrt::cat("built-in bytes, serial ", serial, ", prefetch ", prefetch, "; ");
      }
    }
    if (t.ranks > 1 && built_in.bytes_sent == 0) problem += "the built-in exchanges sent nothing ";
  });
  REQUIRE(on_all(problem + thrown) == "");
}
