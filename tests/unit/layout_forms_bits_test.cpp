#include <catch2/catch.hpp>

#include "layout/parse.hpp"
#include "support/caller_functions.hpp"
#include "support/covering.hpp"
#include "support/world.hpp"

// "Same bits" for every form a layout has: experts, parts, flat ranges, row bounds, owners, units,
// several mesh dimensions as one. The reference is one rank that holds everything.

using namespace muonrt;

namespace {

/// A parameter in a form of its own, and what mesh it wants.
struct FormCase {
  std::string name;
  std::vector<int64_t> mesh;
  std::function<Layout(std::shared_ptr<const Mesh>, std::vector<int64_t>)> layout;
};

Layout whole_on_all(std::shared_ptr<const Mesh> mesh, std::vector<int64_t> shape) {
  return Layout::from_cuts(std::move(mesh), std::move(shape), {});
}

/// Even pieces of a flat tensor with boundaries inside rows, the last one short.
Layout flat(std::shared_ptr<const Mesh> mesh, std::vector<int64_t> shape) {
  int64_t numel = 1;
  for (const int64_t n : shape) numel *= n;
  const int64_t slots = mesh->size(), width = numel / slots + 1;
  std::vector<std::pair<int64_t, int64_t>> ranges;
  for (int64_t s = 0; s < slots; ++s) {
    ranges.emplace_back(std::min(numel, s * width), std::min(numel, (s + 1) * width));
  }
  std::vector<int> dims;
  for (int d = 0; d < mesh->dims(); ++d) dims.push_back(d);
  return Layout::with_flat(mesh, shape, {}, dims, ranges);
}

Layout bounds(std::shared_ptr<const Mesh> mesh, std::vector<int64_t> shape) {
  const int64_t n = shape[0], slots = mesh->shape()[0];
  std::vector<int64_t> at(static_cast<size_t>(slots) + 1, n);
  at[0] = 0;
  for (int64_t s = 1; s < slots; ++s) at[static_cast<size_t>(s)] = std::min(n, s * s + 1);
  return Layout::with_row_bounds(mesh, shape, {}, {0}, 0, at);
}

Layout cuts(std::shared_ptr<const Mesh> mesh, std::vector<int64_t> shape, const std::string& text) {
  return Layout::from_cuts(mesh, shape, parse_cuts(text, *mesh));
}

std::vector<FormCase> forms() {
  const auto by_cuts = [](const char* text) {
    return [text](auto mesh, auto shape) { return cuts(mesh, shape, text); };
  };
  return {
      {"replicated", {3}, whole_on_all},
      {"rows", {4}, by_cuts("d0:0:1")},
      {"last dimension",
       {3},
       [](auto mesh, auto shape) {
         const int last = static_cast<int>(shape.size()) - 1;
         return Layout::from_cuts(mesh, shape, {Cut{{0}, last, 1, 1}});
       }},
      {"flat", {5}, flat},
      {"flat over two dims", {2, 3}, flat},
      {"row bounds", {4}, bounds},
      {"row bounds, replicated", {3, 2}, bounds},
      {"owner", {4}, [](auto mesh, auto shape) { return Layout::with_owner(mesh, shape, {0}, 2); }},
      {"owner in each replica",
       {2, 3},
       [](auto mesh, auto shape) { return Layout::with_owner(mesh, shape, {1}, 1); }},
      {"FSDP over two dims as one, after TP", {2, 2, 2}, by_cuts("d2:0:1,d0*d1:0:1")},
      {"strided", {2, 2}, by_cuts("d0:0:3,d1:0:1")},
      {"blocks of two rows", {3, 2}, by_cuts("d0:0:1:2,d1:0:1")},
      {"zero redundancy over replicas", {4, 2}, by_cuts("d1:0:1")},
      {"last two dims over sixteen", {4, 4}, [](auto mesh, auto shape) {
         const int last = static_cast<int>(shape.size()) - 1;
         return Layout::from_cuts(mesh, shape, {Cut{{0}, 0, 1, 1}, Cut{{1}, last, 1, 1}});
       }}};
}

Runs rows(std::initializer_list<Run> list) { return Runs(list); }

/// Interleaved QKV of two groups (two query heads of 3 rows, a key and a value head each), columns
/// whole: query rows of both groups, key rows, value rows.
std::vector<PartSettings> interleaved_qkv() {
  return {{"q", rows({{0, 6}, {12, 18}}), whole(10), 1.0},
          {"k", rows({{6, 9}, {18, 21}}), whole(10), 0.5},
          {"v", rows({{9, 12}, {21, 24}}), whole(10), 2.0}};
}

world::Case make(const FormCase& form, int window, CommitMode commit, int64_t chunk) {
  world::Case c;
  c.mesh = form.mesh;
  c.world = 1;
  for (const int64_t n : form.mesh) c.world *= static_cast<int>(n);
  c.settings.window = window;
  c.settings.commit = commit;
  c.settings.chunk_bytes = chunk;
  c.settings.poison = true;
  c.steps = 3;
  const auto add = [&](const char* name, std::vector<int64_t> shape, View view,
                       std::vector<PartSettings> parts, Role role = Role::kMuon) {
    world::Param p;
    p.name = name;
    p.shape = std::move(shape);
    p.role = role;
    p.view = view;
    p.parts = std::move(parts);
    p.make_layout = form.layout;
    c.params.push_back(std::move(p));
  };
  add("matrix", {13, 11}, View::kPlain, {});
  add("experts", {5, 7, 6}, View::kStack, {});
  add("qkv", {24, 10}, View::kPlain, interleaved_qkv());
  add("gate_up", {18, 7}, View::kPlain,
      {{"gate", rows({{0, 9}}), whole(7), 1.0}, {"up", rows({{9, 18}}), whole(7), 1.0}});
  add("columns", {6, 20}, View::kPlain,
      {{"left", whole(6), rows({{0, 5}, {15, 20}}), 1.0},
       {"right", whole(6), rows({{5, 15}}), 1.0}});
  // llm.c's (L, 3C, C): a stack of fused matrices, often flat.
  add("stacked qkv", {3, 12, 4}, View::kStack,
      {{"q", rows({{0, 4}}), whole(4), 1.0},
       {"k", rows({{4, 8}}), whole(4), 1.0},
       {"v", rows({{8, 12}}), whole(4), 1.0}});
  add("conv", {6, 3, 2}, View::kMatrix, {});
  add("bias", {17}, View::kPlain, {}, Role::kAdamW);
  return c;
}

// Matrices: 1, 5, 3, 2, 2, 9, 1.
constexpr int64_t kMatrices = 23;

}  // namespace

TEST_CASE("same bits: experts, parts, flat ranges, row bounds and owners on any mesh", "[bits]") {
  const FormCase alone{"alone", {1}, whole_on_all};
  const auto reference = world::run(make(alone, 3, CommitMode::kAtomic, 1 << 20));
  CHECK(reference.reports[0].planned == kMatrices);
  CHECK(reference.reports[0].orthogonalized == kMatrices);
  const auto all = forms();
  for (const auto& row : covering::pairwise({static_cast<int>(all.size()), 4, 2, 2}, 3)) {
    const FormCase& form = all[static_cast<size_t>(row[0])];
    const auto commit = row[2] ? CommitMode::kEager : CommitMode::kAtomic;
    const world::Case c = make(form, 1 + row[1], commit, row[3] ? 512 : 1 << 20);
    // An expert stack's conv sibling has no row of its own in some forms; all must still agree.
    INFO(form.name << ", window " << 1 + row[1] << ", commit " << row[2]);
    const world::Outcome outcome = world::run(c);
    CHECK(outcome.tensors == reference.tensors);
    for (const StepReport& r : outcome.reports) {
      CHECK(r.planned == kMatrices);
      CHECK(r.orthogonalized == kMatrices);
    }
  }
}

TEST_CASE("same bits: functions of the caller's carry every form, at every prefetch depth",
          "[bits][functions]") {
  const FormCase alone{"alone", {1}, whole_on_all};
  const auto reference = world::run(make(alone, 3, CommitMode::kAtomic, 1 << 20));
  const auto all = forms();
  for (const auto& row : covering::pairwise({static_cast<int>(all.size()), 4, 2, 2}, 5)) {
    const FormCase& form = all[static_cast<size_t>(row[0])];
    world::Case c = make(form, 1 + row[1], CommitMode::kAtomic, 512);
    world::Board board(c);
    const bool carried = row[2] == 1;
    c.adjust = [&](OptimizerSettings& settings, int rank) {
      settings.serial = row[3] == 1;
      if (carried) board.serve(settings, rank);
    };
    INFO(form.name << ", window " << 1 + row[1] << ", carried " << carried << ", serial "
                   << row[3]);
    const world::Outcome outcome = world::run(c);
    CHECK(outcome.tensors == reference.tensors);
    for (const StepReport& r : outcome.reports) {
      CHECK(r.orthogonalized == kMatrices);
      if (carried) CHECK(r.bytes_sent == 0);
    }
    // A gather and a redistribution for each of seven parameters, on every rank, in every step.
    CHECK(board.calls() == (carried ? 2 * 7 * c.world * c.steps : 0));
  }
}

TEST_CASE("parts: each part is what it would be as a parameter of its own", "[unit][optimizer]") {
  // gate_up cut into its halves by parts, against two parameters.
  world::Case fused, apart;
  for (world::Case* c : {&fused, &apart}) c->steps = 1;
  world::Param p;
  p.name = "gate_up";
  p.shape = {8, 6};
  p.parts = {{"gate", rows({{0, 4}}), whole(6), 1.0}, {"up", rows({{4, 8}}), whole(6), 1.0}};
  fused.params = {p};
  world::on_ranks(1, [&](Comm& comm) {
    world::Rank together(fused, comm);
    world::Param half;
    half.name = "gate";
    half.shape = {4, 6};
    apart.params = {half};
    world::Rank gate(apart, comm);
    StepReport report;
    // The values of the first half are those of a 4 x 6 parameter with the same index.
    together.step(0, report);
    CHECK(report.orthogonalized == 2);
    gate.step(0, report);
    const auto &whole_data = together.data(0), &gate_data = gate.data(0);
    CHECK(std::equal(gate_data.begin(), gate_data.end(), whole_data.begin()));
  });
}

TEST_CASE("parts: what does not tile the matrix is refused, naming the part", "[unit][optimizer]") {
  const auto attempt = [](std::vector<PartSettings> parts) -> std::string {
    world::Case c;
    world::Param p;
    p.name = "qkv";
    p.shape = {8, 6};
    p.parts = std::move(parts);
    c.params = {p};
    try {
      world::run(c);
    } catch (const Error& e) {
      CHECK(e.status() == Status::kInvalidArgument);
      return e.message();
    }
    return "";
  };
  using Catch::Matchers::Contains;
  CHECK_THAT(attempt({{"q", rows({{0, 4}}), whole(6), 1.0}}),
             Contains("'qkv'") && Contains("24 of 48"));
  CHECK_THAT(attempt({{"q", rows({{0, 5}}), whole(6), 1.0}, {"k", rows({{4, 8}}), whole(6), 1.0}}),
             Contains("'q' and 'k' overlap"));
  CHECK_THAT(attempt({{"q", rows({{0, 9}}), whole(6), 1.0}}), Contains("'q'") && Contains("8 x 6"));
}
