#pragma once

#include <string>

#include "base/hash.hpp"
#include "optimizer/agreement.hpp"
#include "optimizer/settings/settings.hpp"

namespace muonrt {

/// Everything the ranks must have in common at creation, with `device` as Device::describe gives
/// it.
Fingerprint make_fingerprint(const OptimizerSettings& settings, const std::string& device);

/// The settings of a group that may change between steps: as lines of a table, and hashed.
void describe_scalars(Fingerprint& table, const std::string& who, const GroupSettings& group);
void hash_scalars(Hash& hash, const GroupSettings& group);

}  // namespace muonrt
