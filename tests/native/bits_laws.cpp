// The laws of native/bits.hpp, against std::set: built and run by `make sanitize`.
#include "bits.hpp"

#include <cstdio>
#include <cstdlib>
#include <random>
#include <set>
#include <vector>

namespace {

using namespace downset;

#define LAW(what) \
    if (!(what)) std::printf("%s:%d: not so: %s\n", __FILE__, __LINE__, #what), std::exit(1)

// Members at the ends of words are drawn as often as all others together.
std::set<int> drawn(std::mt19937& random, int limit) {
    std::set<int> members;
    for (int left = static_cast<int>(random() % 20); left > 0; --left) {
        const int word = static_cast<int>(random() % (limit / 64));
        members.insert(64 * word + (random() % 2 ? static_cast<int>(random() % 64) : random() % 2 ? 0 : 63));
    }
    return members;
}

template <class Set>
std::vector<int> members_of(const Set& set) {
    std::vector<int> found;
    set.each([&](int v) { found.push_back(v); });
    return found;
}

template <class Set>
Set filled(Set set, const std::set<int>& members) {
    for (const int v : members) set.add(v);
    return set;
}

// `nothing`: an empty set with room for members below `limit`.
template <class Set>
void hold_laws(std::mt19937& random, const Set& nothing, int limit) {
    const auto one = drawn(random, limit), other = drawn(random, limit);
    const Set a = filled(nothing, one), b = filled(nothing, other);
    LAW(members_of(a) == std::vector<int>(one.begin(), one.end()));
    LAW(a.size() == static_cast<int>(one.size()));
    LAW(a.empty() == one.empty());
    LAW((a == b) == (one == other));
    if (!one.empty()) LAW(a.lowest() == *one.begin() && a.highest() == *one.rbegin());

    std::set<int> both, either = one, rest = one;
    for (const int v : other) {
        if (one.contains(v)) both.insert(v);
        either.insert(v);
        rest.erase(v);
    }
    Set c = a;
    LAW((c |= b) == filled(nothing, either));
    c = a;
    LAW((c &= b) == filled(nothing, both));
    c = a;
    LAW((c -= b) == filled(nothing, rest));
    LAW(a.meets(b) == !both.empty());
    LAW(a.within(b) == rest.empty());
    c.assign(b);
    LAW(c == b && BitsHash()(c) == BitsHash()(b));
    c.clear();
    LAW(c.empty());

    c = a;
    for (int v = 0; v < limit; ++v) {
        LAW(a.has(v) == one.contains(v));
        c.remove(v);
        LAW(!c.has(v));
    }
    LAW(c.empty());

    // A visit that stops at the middle saw what lies before it, from either end.
    const int stop = static_cast<int>(random() % limit);
    std::vector<int> upwards, downwards;
    LAW(a.any([&](int v) { return upwards.push_back(v), v >= stop; }) == (one.lower_bound(stop) != one.end()));
    a.each_down(stop, [&](int v) { return downwards.push_back(v), true; });
    const std::vector<int> below(one.begin(), one.lower_bound(stop));
    LAW(downwards == std::vector<int>(below.rbegin(), below.rend()));
    LAW(std::equal(below.begin(), below.end(), upwards.begin()));
    int seen = 0;
    a.each_down(limit, [&](int) { return ++seen < 2; });
    LAW(seen == std::min(2, a.size()));
}

void hold_laws_of_tables(std::mt19937& random, int words) {
    BitsTable table(words, 3);
    const DynamicBits one = filled(no_bits(words), drawn(random, 64 * words));
    table[1] |= one;
    table.push_back(one);
    const BitsTable& known = table;
    LAW(known[0].empty() && known[2].empty());  // rows do not touch each other
    LAW(known[1] == one && known[3] == one);
    table.clear();
    table.push_back(one);
    LAW(known[0] == one);
}

}  // namespace

int main() {
    std::mt19937 random(7);
    for (int round = 0; round < 300; ++round) {
        hold_laws(random, FixedBits<1>{}, 64);
        hold_laws(random, FixedBits<16>{}, 1024);
        for (const int words : {1, 2, 5}) {
            hold_laws(random, no_bits(words), 64 * words);
            hold_laws_of_tables(random, words);
        }
    }
    LAW(words_for(0) == 1 && words_for(64) == 1 && words_for(65) == 2);
}
