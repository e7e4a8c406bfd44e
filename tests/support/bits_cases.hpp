#pragma once

#include <random>
#include <string>
#include <vector>

#include "support/world.hpp"

/// Cases that test whether results are bitwise identical on any mesh: parameters, meshes,
/// placements and settings.
namespace bits {

using muonrt::Placement;
using muonrt::PlacementKind;
using muonrt::Role;

/// Returns matrices of many shapes (1 x N, N x 1, primes, wide, tall, smaller than the mesh) and
/// vectors.
inline std::vector<world::Param> params(bool half) {
  std::vector<world::Param> out;
  const auto add = [&](const char* name, std::vector<int64_t> shape, Role role) {
    world::Param p;
    p.name = name;
    p.shape = std::move(shape);
    p.role = role;
    // The parameters alternate between three pairs of weight and gradient dtypes.
    if (half && out.size() % 3 != 0) p.grad_dtype = muonrt::DType::kBF16;
    if (half && out.size() % 3 == 2) p.dtype = muonrt::DType::kBF16;
    out.push_back(std::move(p));
  };
  add("row", {1, 37}, Role::kMuon);
  add("column", {41, 1}, Role::kMuon);
  add("one", {1, 1}, Role::kMuon);
  add("prime", {31, 67}, Role::kMuon);
  add("tall", {96, 17}, Role::kMuon);
  add("wide", {24, 160}, Role::kMuon);
  add("square", {48, 48}, Role::kMuon);
  add("twin", {48, 48}, Role::kMuon);
  add("small", {3, 5}, Role::kMuon);
  add("bias", {53}, Role::kAdamW);
  add("embedding", {29, 12}, Role::kAdamW);
  return out;
}

struct MeshCase {
  int world;
  std::vector<int64_t> mesh;
  std::vector<int32_t> ranks;
};

inline std::vector<MeshCase> meshes() {
  return {{1, {1}, {}},
          {2, {2}, {}},
          {2, {2}, {1, 0}},
          {3, {3}, {}},
          {4, {4}, {}},
          {4, {2, 2}, {}},
          {4, {2, 2}, {3, 1, 0, 2}},
          {5, {5}, {}},
          {5, {2, 2}, {4, 0, 2, 3}},  // rank 1 holds no elements
          {8, {8}, {}},
          {8, {2, 2, 2}, {}},  // 2 TP x 2 replicate x 2 shard
          {8, {4, 2}, {7, 6, 5, 4, 3, 2, 1, 0}},
          {16, {16}, {}},
          {16, {2, 4, 2}, {}},
          {6, {3, 2}, {}},
          {6, {2, 3}, {5, 0, 4, 1, 3, 2}}};
}

constexpr int kSchemes = 6;

/// Returns the placements of parameter `index` on a mesh of `dims` dimensions. `scheme` is a case
/// of the switch below.
inline std::vector<Placement> placements(int scheme, size_t index, size_t dims,
                                         const std::vector<int64_t>& shape,
                                         const std::vector<int64_t>& mesh) {
  const Placement r{PlacementKind::kReplicate, 0, 1};
  const int columns = shape.size() > 1 ? 1 : 0;
  const auto shard = [](int dim) { return Placement{PlacementKind::kShard, dim, 1}; };
  std::vector<Placement> out(dims, r);
  std::mt19937 random(static_cast<uint32_t>(index * 977 + dims));
  for (size_t d = 0; d < dims; ++d) {
    switch (scheme) {
      case 0:
        out[d] = shard(0);
        break;  // all dimensions shard rows
      case 1:
        out[d] = d == 0 && dims > 1 ? r : shard(0);
        break;  // HSDP
      case 2:
        out[d] = shard(d % 2 == 0 ? columns : 0);
        break;  // TP columns, FSDP rows
      case 3:   // FSDP2 over TP
        out[d] = d + 1 < dims ? Placement{PlacementKind::kStridedShard, 0, mesh.back()} : shard(0);
        break;
      case 4:
        out[d] = r;
        break;  // replicated
      default:  // random placements
        out[d] = random() % 3 == 0 ? r : shard(random() % 2 ? columns : 0);
        if (random() % 4 == 0)
          out[d] = {PlacementKind::kStridedShard, columns, static_cast<int64_t>(1 + random() % 3)};
    }
  }
  return out;
}

struct Factors {
  size_t mesh = 0;
  int scheme = 0, window = 3, chunk = 0, commit = 0, threads = 1;
  int variant = 0;  // the argument of set_variant()
};

constexpr int kVariants = 7, kScaledLines = 6;

/// Selects the coefficients, the form and the options of Newton-Schulz.
inline void set_variant(muonrt::GroupSettings& g, int variant) {
  using Family = muonrt::CoefficientFamily;
  const auto take = [&](Family family, muonrt::FormChoice form, muonrt::DType dtype) {
    g.coefficients = family;
    g.steps = muonrt::published_steps(family);
    g.form = form;
    g.iteration_dtype = dtype;
  };
  constexpr auto kStandard = muonrt::FormChoice::kStandard, kGram = muonrt::FormChoice::kGram;
  switch (variant) {
    case 1:
      take(Family::kPolarExpress, kGram, muonrt::DType::kF16);
      break;
    case 2:
      take(Family::kAol, kStandard, muonrt::DType::kBF16);
      g.row_scaling = muonrt::RowScaling::kAol;
      break;
    case 3:
      g.blocks = {2, 2, 3, 0.5};
      break;
    case 4:
      take(Family::kCubic, kStandard, muonrt::DType::kF16);
      g.normalize = muonrt::Normalize::kAddEps;
      break;
    case 5:
      take(Family::kDeepSeekV4, kGram, muonrt::DType::kF32);
      g.row_scaling = muonrt::RowScaling::kAol;
      g.normalize = muonrt::Normalize::kMaxEps;
      g.blocks = {3, 4, 1, 2.0};
      break;
    case kScaledLines:
      take(Family::kPolarExpress, kGram, muonrt::DType::kF16);
      g.row_scaling = muonrt::RowScaling::kEquilibrate;
      g.renormalize = true;
      break;
    default:
      break;
  }
}

inline world::Case make(const Factors& f, bool half, int steps) {
  world::Case c;
  const MeshCase m = meshes()[f.mesh];
  c.world = m.world;
  c.mesh = m.mesh;
  c.rank_array = m.ranks;
  c.params = params(half);
  for (size_t i = 0; i < c.params.size(); ++i) {
    // The matrix is stored transposed, and NorMuon must scale its rows, which are stored as
    // columns.
    if (f.variant == kScaledLines && c.params[i].name == "tall") c.params[i].transposed = true;
    c.params[i].placements = placements(f.scheme, i, m.mesh.size(), c.params[i].shape, m.mesh);
  }
  static constexpr int64_t kChunks[] = {2048, 8192, 1 << 20};
  c.settings.chunk_bytes = kChunks[f.chunk];
  c.settings.window = f.window;
  c.settings.commit = f.commit ? muonrt::CommitMode::kEager : muonrt::CommitMode::kAtomic;
  c.settings.threads = f.threads;
  c.settings.iteration_dtype = half ? muonrt::DType::kBF16 : muonrt::DType::kF32;
  c.settings.groups = world::default_groups();
  set_variant(c.settings.groups[0], f.variant);
  c.settings.poison = true;
  c.steps = steps;
  c.inactive_params = {{}, {3, 9}, {}};
  return c;
}

inline world::Tensors reference_ops(bool half, int steps, int variant = 0) {
  Factors f;
  f.variant = variant;
  return world::run(make(f, half, steps)).tensors;
}

}  // namespace bits
