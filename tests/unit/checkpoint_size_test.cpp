// Checkpoints of as many matrices as a mixture of experts has, on as many ranks.

#include <catch2/catch.hpp>
#include <chrono>
#include <cstdlib>
#include <cstring>

#include "support/folder.hpp"
#include "support/rank_check.hpp"
#include "support/resumed.hpp"

using namespace muonrt;

namespace {

constexpr int64_t kExperts = 384, kEach = 3, kRows = 8, kCols = 8;  // Kimi K2's, but for the sizes

/// A model of such layers, on so many ranks: each matrix whole on one of them.
struct Model {
  int64_t layers;
  int ranks;
  bool stacked;    // experts of a layer are one parameter, cut; else a parameter each
  int turned = 0;  // ranks by which matrices of one parameter each lie further on
};

std::vector<ParamSettings> params_of(const Model& m) {
  const auto mesh = std::make_shared<Mesh>(std::vector<int64_t>{m.ranks},
                                           std::vector<std::string>{}, std::vector<int32_t>{});
  std::vector<Layout> owned;
  for (int r = 0; r < m.ranks; ++r)
    owned.push_back(Layout::with_owner(mesh, {kRows, kCols}, {0}, r));
  const Layout stack = Layout::from_placements(mesh, {kExperts, kRows, kCols},
                                               {{PlacementKind::kShard, 0, 1}}, Reading::kLiteral);
  std::vector<ParamSettings> out;
  for (int64_t layer = 0; layer < m.layers; ++layer) {
    for (int64_t i = 0; i < kEach * (m.stacked ? 1 : kExperts); ++i) {
      ParamSettings& p = out.emplace_back();
      p.name = cat("model.layers.", layer, ".mlp.experts.", i / kEach, ".",
                   i % kEach == 0   ? "gate_proj"
                   : i % kEach == 1 ? "up_proj"
                                    : "down_proj",
                   ".weight");
      p.view = m.stacked ? View::kStack : View::kPlain;
      p.layout =
          m.stacked ? stack : owned[(out.size() + static_cast<size_t>(m.turned)) % owned.size()];
    }
  }
  return out;
}

/// One rank of it.
class Rank {
 public:
  Rank(const std::vector<ParamSettings>& params, Comm& comm) {
    OptimizerSettings settings;
    settings.groups = world::default_groups();
    settings.params = params;
    int64_t elements = 0;
    for (ParamSettings& p : settings.params) elements += p.layout.local_numel(comm.rank());
    data_.resize(static_cast<size_t>(elements));
    grad_.resize(data_.size());
    size_t at = 0;
    for (ParamSettings& p : settings.params) {
      p.data = data_.data() + at;
      p.grad = grad_.data() + at;
      at += p.layout.local_numel(comm.rank());
    }
    optimizer = Optimizer::create(
        comm, [&] { return std::move(settings); }, world::host_device);
  }
  /// Calls `visit` with each element here, its parameter and momentum.
  template <class Visit>
  void each(const Visit& visit) {
    const auto& params = optimizer->settings().params;
    for (size_t p = 0; p < params.size(); ++p) {
      if (params[p].layout.local_numel(optimizer->rank()) == 0) continue;
      const auto view = optimizer->state(static_cast<int64_t>(p), StateKind::kMomentum);
      float* const data = static_cast<float*>(params[p].data);
      float* const momentum = static_cast<float*>(view.data);
      world::for_each_element(
          params[p].layout, optimizer->rank(), [&](int64_t element, int64_t local) {
            visit(static_cast<float>((p * 64 + element) % 9973 + 1), data[local], momentum[local]);
          });
    }
  }

  std::unique_ptr<Optimizer> optimizer;

 private:
  std::vector<float> data_, grad_;
};

/// Saved by one, loaded by the other. @return  what it took.
std::string check(const Model& from, const Model& to) {
  const test_support::Folder folder;
  std::string took;
  const auto measured = [&](Comm& comm, const char* what, const auto& work) {
    char all[64];
    comm.allgather("", all, 1);
    const auto begin = std::chrono::steady_clock::now();
    work();
    comm.allgather("", all, 1);
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
    if (comm.rank() == 0) took += cat(what, " ", seconds.count(), " s; ");
  };
  world::on_ranks(from.ranks, [&, params = params_of(from)](Comm& comm) {
    comm.set_timeout_ms(600'000);
    std::optional<Rank> rank;
    measured(comm, "creation", [&] { rank.emplace(params, comm); });
    rank->each([](float value, float& data, float& momentum) {
      data = value;
      momentum = -value;
    });
    rank->optimizer->set_steps(3);
    measured(comm, "save", [&] {
      Files files;
      save_state(*rank->optimizer, folder.path(), {.with_params = true}, files);
    });
  });
  world::on_ranks(to.ranks, [&, params = params_of(to)](Comm& comm) {
    comm.set_timeout_ms(600'000);
    Rank rank(params, comm);
    measured(comm, "load", [&] { load_state(*rank.optimizer, folder.path(), {}); });
    int64_t wrong = 0;
    rank.each([&](float value, float data, float momentum) {
      wrong += data != value || momentum != -value;
    });
    RANK_CHECK(wrong == 0);
    RANK_CHECK(rank.optimizer->steps() == 3);
  });
  return took;
}

}  // namespace

TEST_CASE("checkpoint: experts of one layer go from some ranks to others", "[unit][state]") {
  check({1, 8, false}, {1, 8, false, 3});
  check({1, 8, true}, {1, 6, true});
}

TEST_CASE("checkpoint: 61 layers of 384 experts, stacked on 64 ranks", "[.full]") {
  WARN(check({61, 64, true}, {61, 64, true}));
}

// An optimizer takes 6 KB for each parameter, on every rank.
TEST_CASE("checkpoint: 61 layers of 384 experts, each of 70,272 matrices on one of many ranks",
          "[.full]") {
  const char* const given = std::getenv("MUONRT_TEST_RANKS");
  const int ranks = given ? std::atoi(given) : 8;
  WARN(check({61, ranks, false}, {61, ranks, false}));
  WARN("other ranks: " << check({61, ranks, false}, {61, ranks, false, 7}));
}
