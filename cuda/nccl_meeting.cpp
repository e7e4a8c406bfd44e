#include "cuda/nccl_meeting.hpp"

#include <algorithm>
#include <cstring>
#include <map>
#include <new>
#include <vector>

namespace muonrt::cuda {

namespace {

struct Card {
  int32_t status, nccl_version, library_version, reserved;
  NcclUniqueId id;
  char message[880];
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

/// `version` -> ranks that have it.
void require_equal(const std::map<int32_t, std::vector<int32_t>>& ranks, const char* what,
                   std::string (*text)(int)) {
  if (ranks.size() == 1) return;
  std::string list;
  for (const auto& [version, who] : ranks)
    list += cat(list.empty() ? "" : "; ", text(version), " on ranks ", who);
  throw Error(Status::kMismatch, cat("NCCL communicator: versions of ", what, " differ (", list,
                                     "); load the same one on all ranks"));
}

std::string library_text(int version) {
  return cat(version / 10000, '.', version / 100 % 100, '.', version % 100);
}

}  // namespace

NcclUniqueId nccl_meet(Bootstrap& bootstrap, const std::function<NcclGuest()>& prepare) {
  const std::vector<Card> all = exchange_cards(bootstrap, attempt(prepare));
  std::map<int32_t, std::vector<int32_t>> nccl, library;
  for (size_t r = 0; r < all.size(); ++r) {
    nccl[all[r].nccl_version].push_back(static_cast<int32_t>(r));
    library[all[r].library_version].push_back(static_cast<int32_t>(r));
  }
  require_equal(library, "muonrt", library_text);
  require_equal(nccl, "NCCL", [](int v) { return nccl_version_text(v); });
  return all[0].id;
}

void nccl_together(Bootstrap& bootstrap, const std::function<void()>& work) {
  exchange_cards(bootstrap, attempt([&] {
                   work();
                   return NcclGuest();
                 }));
}

}  // namespace muonrt::cuda
