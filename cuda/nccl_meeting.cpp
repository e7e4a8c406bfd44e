#include "cuda/nccl_meeting.hpp"

#include <algorithm>
#include <cstring>
#include <map>
#include <new>
#include <vector>

namespace muonrt::cuda {

namespace {

struct Card {
  int32_t status, nccl_version, library_version, max_ctas, channels_per_net_peer;
  NcclOrigin origin;
  NcclUniqueId id;
  char message[872];
};

NcclGuest attempt(const std::function<NcclGuest()>& prepare) {
  NcclGuest out;
  try {
    return prepare();
  } catch (const Error& e) {
    out.error = e;
  } catch (const std::bad_alloc&) {
    out.error =
        Error(Status::kOutOfMemory, "host memory is exhausted; use fewer or smaller buffers");
  } catch (const std::exception& e) {
    out.error = Error(Status::kInternal, cat("internal: ", e.what()));
  }
  return out;
}

std::vector<Card> exchange_cards(Bootstrap& bootstrap, const NcclGuest& mine) {
  Card card{};
  card.nccl_version = mine.nccl_version;
  card.library_version = mine.library_version;
  card.max_ctas = mine.max_ctas;
  card.channels_per_net_peer = mine.channels_per_net_peer;
  card.origin = mine.origin;
  card.id = mine.id;
  if (mine.error) {
    card.status = static_cast<int32_t>(mine.error->status());
    const std::string& text = mine.error->message();
    std::memcpy(card.message, text.data(), std::min(text.size(), sizeof card.message - 1));
  }
  std::vector<Card> all(static_cast<size_t>(bootstrap.size()));
  bootstrap.allgather(&card, all.data(), sizeof card);
  for (size_t r = 0; r < all.size(); ++r) {
    if (all[r].status == 0) continue;
    all[r].message[sizeof card.message - 1] = 0;
    throw Error(static_cast<Status>(all[r].status),
                all.size() == 1 ? std::string(all[r].message)
                                : cat("rank ", r, ": ", std::string(all[r].message)));
  }
  return all;
}

/// @param what  "versions of NCCL differ".
void require_equal(const std::vector<Card>& all, const char* what,
                   const std::function<std::string(const Card&)>& text, const char* remedy) {
  std::map<std::string, std::vector<int32_t>> ranks;
  for (size_t r = 0; r < all.size(); ++r) ranks[text(all[r])].push_back(static_cast<int32_t>(r));
  if (ranks.size() == 1) return;
  std::string list;
  for (const auto& [value, who] : ranks)
    list += cat(list.empty() ? "" : "; ", value, " on ranks ", who);
  throw Error(Status::kMismatch, cat("NCCL communicator: ", what, " (", list, "); ", remedy));
}

std::string library_text(int version) {
  return cat(version / 10000, '.', version / 100 % 100, '.', version % 100);
}

std::string origin_text(NcclOrigin origin) {
  if (origin == NcclOrigin::kNew) return "none";
  return origin == NcclOrigin::kSplit ? "one to split" : "one to borrow";
}

}  // namespace

NcclUniqueId nccl_meet(Bootstrap& bootstrap, const std::function<NcclGuest()>& prepare) {
  const std::vector<Card> all = exchange_cards(bootstrap, attempt(prepare));
  const char *const load = "load the same one on all ranks", *const give =
                                                                 "give all ranks the same";
  require_equal(
      all, "versions of muonrt differ",
      [](const Card& c) { return library_text(c.library_version); }, load);
  require_equal(
      all, "versions of NCCL differ",
      [](const Card& c) { return nccl_version_text(c.nccl_version); }, load);
  require_equal(
      all, "nccl_comm and borrow differ", [](const Card& c) { return origin_text(c.origin); },
      give);
  require_equal(
      all, "max_ctas differs", [](const Card& c) { return cat(c.max_ctas); }, give);
  require_equal(
      all, "channels_per_net_peer differs",
      [](const Card& c) { return cat(c.channels_per_net_peer); }, give);
  return all[0].id;
}

void nccl_together(Bootstrap& bootstrap, const std::function<void()>& work) {
  exchange_cards(bootstrap, attempt([&] {
                   work();
                   return NcclGuest();
                 }));
}

}  // namespace muonrt::cuda
