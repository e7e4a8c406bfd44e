#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "base/deadline.hpp"
#include "comm/handshake.hpp"
#include "comm/run_folder.hpp"

namespace muonrt {

/// Ranks that share a folder, as processes of one machine or over a network file system.
struct FolderMeeting {
  int rank = 0, size = 1;
  std::string path;    // an existing folder
  std::string run_id;  // names this run: 1 to 64 letters, digits, '.', '-', '_'; not used before
  int32_t version = 0;
  std::string secret{};  // the same on all ranks, at least kSecretBytes; or empty
};

// What is said there: each rank's card, and rank 0's answer with the cards of all ranks, so that
// nobody takes the answer of an earlier run for this one's; an error in an answer without this
// rank's card is passed on with a word of that. Both carry an HMAC over all they say
// and the run's id: by the cards' random numbers the answer is for these cards alone. Without a
// secret its key is empty, and it serves as a checksum.

struct Card {
  std::array<char, 8> magic;
  int32_t rank, size, version, reserved;
  Nonce nonce;
  Digest proof;
};
static_assert(sizeof(Card) == 88);
constexpr std::array<char, 8> kCard = {'m', 'u', 'o', 'n', 'r', 't', 'F', '1'};

/// With a fresh number.
Card make_card(const FolderMeeting& meeting);
Digest proof_of(const FolderMeeting& meeting, const Card& card);
/// @param cards  of all ranks; zeros for those that have not come.
std::string make_answer(const FolderMeeting& meeting, const std::vector<Card>& cards, Status status,
                        const std::string& message);

/// Returns when all ranks have come. Rank 0 makes the folder, turns away who has another secret,
/// and goes on waiting. Errors: IO; INVALID_STATE if the folder or this rank's place in it is there
/// already, or, without a secret, the folder is another user's; COMM if the secrets differ; on all
/// ranks, MISMATCH of sizes, versions or
/// numbers, CORRUPT if a card is none, COMM if a rank's process ends while the others come, TIMEOUT
/// naming who is missing and who gave up before. The others wait up to 2 s past their deadlines for
/// the answer of a rank 0 whose lock they see.
void meet_in(RunFolder& folder, const FolderMeeting& meeting, Deadline deadline);

}  // namespace muonrt
