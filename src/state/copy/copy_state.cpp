#include "state/copy/copy_state.hpp"

#include <algorithm>
#include <string_view>
#include <unordered_map>

#include "base/crc32c.hpp"
#include "base/deadline.hpp"
#include "base/log.hpp"
#include "optimizer/agreement.hpp"
#include "state/copy/copier.hpp"
#include "state/manifest.hpp"

namespace muonrt {

namespace {

/// What each rank reports to the others about its `from`.
struct Header {
  int64_t given = 0;  // 0 if this rank does not have `from`
  uint64_t identity = 0;
  int64_t steps = 0, text_bytes = 0, text_crc32c = 0;
};

/// Checks that the ranks pass the same optimizer in the same state, and returns the lowest rank
/// that has the optimizer. Throws the same error on every rank.
size_t check_headers(const std::vector<Header>& all) {
  const auto first = std::find_if(all.begin(), all.end(), [](const Header& h) { return h.given; });
  MUONRT_REQUIRE(first != all.end(), kInvalidArg,
                 "copy_state: from is NULL on all ranks; pass the old optimizer on the ranks that "
                 "have it");
  const auto lowest = static_cast<size_t>(first - all.begin());
  for (size_t r = 0; r < all.size(); ++r) {
    if (!all[r].given) continue;
    MUONRT_REQUIRE(all[r].identity == first->identity, Status::kMismatch, "copy_state: ranks ",
                   lowest, " and ", r,
                   " pass ranks of different optimizers as from; pass ranks of one optimizer");
    MUONRT_REQUIRE(all[r].steps == first->steps, Status::kMismatch, "copy_state: from has ",
                   first->steps, " committed steps on rank ", lowest, ", but ", all[r].steps,
                   " on rank ", r, "; call muonrt_optimizer_recover() on it first");
    MUONRT_REQUIRE(
        all[r].text_bytes == first->text_bytes && all[r].text_crc32c == first->text_crc32c,
        Status::kMismatch, "copy_state: settings, seed or update counts of from differ ",
        "between ranks ", lowest, " and ", r, "; make them equal");
  }
  return lowest;
}

/// Finds the parameters of `from`. They must have the same state tensors as the parameters of `to`.
/// @return  For each parameter of `to`, its index in `from`.
std::vector<int64_t> match_params(const Manifest& from, const Manifest& to) {
  std::unordered_map<std::string_view, int64_t> by_name;
  for (const ManifestParam& p : from.params)
    by_name.emplace(p.name, static_cast<int64_t>(by_name.size()));
  std::vector<int64_t> out;
  for (const ManifestParam& p : to.params) {
    const auto found = by_name.find(p.name);
    MUONRT_REQUIRE(found != by_name.end(), kInvalidArg, "copy_state: param ", in_quotes(p.name),
                   " is not in from; create both optimizers with the same parameters");
    const ManifestParam& old = from.params[static_cast<size_t>(found->second)];
    const auto equal = [&](const char* what, const auto& a, const auto& b) {
      MUONRT_REQUIRE(a == b, kInvalidArg, "copy_state: param ", in_quotes(p.name), ": its ", what,
                     " is ", a, " in from, but ", b,
                     " in to; use the same, or save and load a checkpoint, which can convert more");
    };
    const auto kinds = [](const ManifestParam& param) {
      std::string text;
      for (const auto& [kind, dtype] : param.state)
        text += cat(text.empty() ? "" : ", ", kind, " ", dtype);
      return cat("(", text, ")");
    };
    equal("shape", old.shape, p.shape);
    equal("dtype", old.dtype, p.dtype);
    equal("role", old.role, p.role);
    equal("state", kinds(old), kinds(p));
    equal("momentum_kind", old.momentum, p.momentum);
    MUONRT_REQUIRE(old.neurons == p.neurons, kInvalidArg, "copy_state: param ", in_quotes(p.name),
                   ": its NorMuon neurons differ, because normuon_axis or parts differ; use the "
                   "same in both optimizers");
    out.push_back(found->second);
  }
  for (const ManifestParam& p : to.params) by_name.erase(p.name);
  if (!by_name.empty())
    throw make_error(kInvalidArg, "copy_state: param ",
                     in_quotes(std::string(by_name.begin()->first)),
                     " of from is not in to; create both optimizers with the same parameters");
  return out;
}

}  // namespace

void copy_state(Optimizer& to, Optimizer* from) {
  const auto start = Deadline::Clock::now();
  to.require_usable();
  Comm& comm = to.comm();
  const auto world = static_cast<size_t>(comm.size());
  Header mine;
  std::vector<Header> all;
  std::string text;
  std::optional<BlockExchange> exchange;
  Blocks blocks;
  run_collectively(comm, [&] {
    all.resize(world);
    blocks.resize(world);
    exchange.emplace(to);
    if (!from) return;
    from->require_whole("copy_state: from");
    text = to_text(manifest_of(*from));
    mine = {1, from->identity(), from->steps(), std::ssize(text),
            int64_t{crc32c(text.data(), text.size())}};
  });
  comm.allgather(&mine, all.data(), sizeof mine);
  const size_t lowest = check_headers(all);
  std::vector<int64_t> sizes(world);
  run_or_abort(comm, [&] {
    sizes[lowest] = all[lowest].text_bytes;
    if (lowest == static_cast<size_t>(comm.rank()))
      blocks.assign(world, std::vector<unsigned char>(text.begin(), text.end()));
  });
  blocks = exchange->run(blocks, sizes);
  Manifest old, own;
  Copier copier(to, from, *exchange);
  run_collectively(comm, [&] {
    old = parse_manifest(
        {reinterpret_cast<const char*>(blocks[lowest].data()), blocks[lowest].size()},
        "copy_state");
    own = manifest_of(to);
    copier.prepare(match_params(old, own));
  });
  copier.share_extents();
  run_collectively(comm, [&] { copier.require_elements(); });
  const auto error = capture_error([&] { copier.copy(); });
  if (error) {
    const Error end = error->with_context("copy_state: state is partly written: ");
    to.set_fatal_error(end);
    throw end;
  }
  std::unordered_map<std::string_view, const ManifestParam*> by_name;
  for (const ManifestParam& p : old.params) by_name[p.name] = &p;
  RandomKeys keys = {old.seed, {}};
  std::vector<int64_t> updates;
  for (const ManifestParam& p : own.params) {
    updates.push_back(by_name.at(p.name)->updates);
    keys.keys.push_back(by_name.at(p.name)->key);
  }
  to.resume(old.step, updates, keys);
  log(LogLevel::kInfo, [&] {
    return cat("rank ", comm.rank(), ": copied the state of step ", to.steps(), " (",
               copier.bytes(), " bytes of this rank, ", fixed(seconds_since(start), 3), " s)");
  });
}

}  // namespace muonrt
