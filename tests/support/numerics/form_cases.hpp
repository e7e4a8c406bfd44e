#pragma once

#include "layout/parse.hpp"
#include "support/world.hpp"

/// Cases with all forms of layouts on 2 to 16 ranks. They include experts, parts, flat ranges, row
/// bounds, owners, units, several mesh dimensions combined into one, and both values of Reading.
namespace forms {

using namespace muonrt;

/// A form of layout, and a mesh for it.
struct Form {
  std::string name;
  std::vector<int64_t> mesh;
  std::function<Layout(std::shared_ptr<const Mesh>, std::vector<int64_t>)> layout;
};

inline Layout whole_on_all(std::shared_ptr<const Mesh> mesh, std::vector<int64_t> shape) {
  return Layout::from_cuts(std::move(mesh), std::move(shape), {});
}

/// Splits a flat tensor into equal ranges whose boundaries are inside rows. Only the last range is
/// shorter.
inline Layout flat(std::shared_ptr<const Mesh> mesh, std::vector<int64_t> shape) {
  int64_t numel = 1;
  for (const int64_t n : shape) numel *= n;
  const int64_t shards = mesh->size(), width = numel / shards + 1;
  std::vector<std::pair<int64_t, int64_t>> ranges;
  for (int64_t s = 0; s < shards; ++s) {
    ranges.emplace_back(std::min(numel, s * width), std::min(numel, (s + 1) * width));
  }
  std::vector<int> dims;
  for (int d = 0; d < mesh->dims(); ++d) dims.push_back(d);
  return Layout::with_flat(mesh, shape, {}, dims, ranges);
}

inline Layout bounds(std::shared_ptr<const Mesh> mesh, std::vector<int64_t> shape) {
  const int64_t n = shape[0], shards = mesh->shape()[0];
  std::vector<int64_t> at(static_cast<size_t>(shards) + 1, n);
  at[0] = 0;
  for (int64_t s = 1; s < shards; ++s) at[static_cast<size_t>(s)] = std::min(n, s * s + 1);
  return Layout::with_row_bounds(mesh, shape, {}, {0}, 0, at);
}

inline Layout cuts(std::shared_ptr<const Mesh> mesh, std::vector<int64_t> shape,
                   const std::string& text) {
  return Layout::from_cuts(mesh, shape, parse_cuts(text, *mesh));
}

inline std::vector<Form> all() {
  const auto by_cuts = [](const char* text) {
    return [text](auto mesh, auto shape) { return cuts(mesh, shape, text); };
  };
  const auto by_reading = [](Reading reading) {
    return [reading](auto mesh, auto shape) {
      const Placement strided{PlacementKind::kStridedShard, 0, 2},
          rows{PlacementKind::kShard, 0, 1};
      return Layout::from_placements(mesh, shape, {strided, rows}, reading);
    };
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
      {"two ranks", {2}, by_cuts("d0:0:1")},
      {"replicas of two", {2}, whole_on_all},
      // A mesh of 3 x 2 shards 13 rows. The two readings assign different rows to ranks 4 and 5.
      {"FSDP2 x TP on one dim, literal", {3, 2}, by_reading(Reading::kLiteral)},
      {"FSDP2 x TP on one dim, ordered", {3, 2}, by_reading(Reading::kOrdered)},
      {"EP x EFSDP x TP",
       {2, 2, 2},
       [](auto mesh, auto shape) {
         const int last = static_cast<int>(shape.size()) - 1;
         std::vector<Cut> list = {Cut{{2}, last, 1, 1}};
         if (shape.size() == 3) list.push_back(Cut{{1}, 0, 1, 1});
         list.push_back(Cut{{0}, shape.size() == 3 ? 1 : 0, 1, 1});
         return Layout::from_cuts(mesh, shape, list);
       }},
      {"blocks of two rows", {3, 2}, by_cuts("d0:0:1:2,d1:0:1")},
      {"zero redundancy over replicas", {4, 2}, by_cuts("d1:0:1")},
      {"the second dimension, strided, then the first",
       {2, 2},
       [](auto mesh, auto shape) {
         const int second = shape.size() > 1 ? 1 : 0;
         return Layout::from_cuts(mesh, shape, {Cut{{0}, second, 2, 1}, Cut{{1}, 0, 1, 1}});
       }},
      {"last two dims over sixteen", {4, 4}, [](auto mesh, auto shape) {
         const int last = static_cast<int>(shape.size()) - 1;
         return Layout::from_cuts(mesh, shape, {Cut{{0}, 0, 1, 1}, Cut{{1}, last, 1, 1}});
       }}};
}

inline Runs rows(std::initializer_list<Run> list) { return Runs(list); }

/// Interleaved QKV with two groups, each of two query heads with 3 rows, a key head and a value
/// head. The parts are the query rows of both groups, the key rows, and the value rows.
inline std::vector<PartSettings> interleaved_qkv() {
  return {{"q", rows({{0, 6}, {12, 18}}), whole(10), 1.0},
          {"k", rows({{6, 9}, {18, 21}}), whole(10), 0.5},
          {"v", rows({{9, 12}, {21, 24}}), whole(10), 2.0}};
}

inline world::Case make(const Form& form, int window, CommitMode commit, int64_t chunk) {
  world::Case c = world::on_mesh(form.mesh);
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
  add("matrix", {13, 11}, View::kNone, {});
  add("experts", {5, 7, 6}, View::kStack, {});
  add("qkv", {24, 10}, View::kNone, interleaved_qkv());
  add("gate_up", {18, 7}, View::kNone,
      {{"gate", rows({{0, 9}}), whole(7), 1.0}, {"up", rows({{9, 18}}), whole(7), 1.0}});
  add("columns", {6, 20}, View::kNone,
      {{"left", whole(6), rows({{0, 5}, {15, 20}}), 1.0},
       {"right", whole(6), rows({{5, 15}}), 1.0}});
  // The (L, 3C, C) tensors of llm.c are stacks of fused matrices, and are often stored flat.
  add("stacked qkv", {3, 12, 4}, View::kStack,
      {{"q", rows({{0, 4}}), whole(4), 1.0},
       {"k", rows({{4, 8}}), whole(4), 1.0},
       {"v", rows({{8, 12}}), whole(4), 1.0}});
  add("conv", {6, 3, 2}, View::kFlatten, {});
  // The tensor is stored as inputs x outputs, but the parts treat outputs as rows.
  add("in x out", {9, 9}, View::kNone, {});
  c.params.back().transposed = true;
  add("layers x experts", {2, 3, 5, 8}, View::kStack,
      {{"gate", rows({{0, 4}}), whole(5), 1.0}, {"up", rows({{4, 8}}), whole(5), 1.0}});
  c.params.back().transposed = true;
  c.params.back().batch_dims = 2;
  c.params.back().row_dims = 1;
  add("heads x head_dim x out", {3, 4, 7}, View::kFlatten, {});
  c.params.back().row_dims = 2;
  add("bias", {17}, View::kNone, {}, Role::kAdamW);
  return c;
}

inline constexpr int64_t kMuon = 10;
// The Muon parameters of make() have 1, 5, 3, 2, 2, 9, 1, 1, 12 and 1 matrices.
inline constexpr int64_t kMatrices = 37;

/// Runs the case on one rank that holds all elements.
inline world::Outcome reference_ops() {
  return world::run(make({"alone", {1}, whole_on_all}, 3, CommitMode::kAtomic, 1 << 20));
}

/// Assigns owners to the matrices that are not in a stack, beginning with the last rank. If a form
/// stores a whole tensor on one rank, nothing is changed, because that rank must be the owner.
inline void give_owners(world::Case& c, const Form& form) {
  if (form.name.find("owner") != std::string::npos) return;
  for (size_t i = 0; i < c.params.size(); ++i) {
    if (c.params[i].role == Role::kMuon && c.params[i].view == View::kNone)
      c.params[i].owner = c.world - 1 - static_cast<int>(i) % c.world;
  }
}

}  // namespace forms
