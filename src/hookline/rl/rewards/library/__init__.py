"""Ready-made reward functions, called as TRL calls them: ``(prompts, completions, **columns)``.

Classes make functions with settings; the functions ending in ``_reward_func`` have the default ones. All take any
text, as a string or as a chat, and are not logged by themselves: `hookline.rewards.wrap` or a `RewardConfig` does it.
"""

from hookline.logging.completions import extract_reasoning_and_answer
from hookline.rl.rewards.library.answers import Correctness, Integer, same_answer
from hookline.rl.rewards.library.length import Length
from hookline.rl.rewards.library.relevance import TopicRelevance
from hookline.rl.rewards.library.repetition import AntiRepetition, repetition
from hookline.rl.rewards.library.text_reward import extract_xml_answer
from hookline.rl.rewards.library.xml_format import SoftFormat, StrictFormat, XMLCount

anti_repetition_reward_func = AntiRepetition()
correctness_reward_func = Correctness()
int_reward_func = Integer()
length_reward_func = Length()
soft_format_reward_func = SoftFormat()
strict_format_reward_func = StrictFormat()
topic_relevance_reward_func = TopicRelevance()
xmlcount_reward_func = XMLCount()

__all__ = [
    "AntiRepetition",
    "Correctness",
    "Integer",
    "Length",
    "SoftFormat",
    "StrictFormat",
    "TopicRelevance",
    "XMLCount",
    "anti_repetition_reward_func",
    "correctness_reward_func",
    "extract_reasoning_and_answer",
    "extract_xml_answer",
    "int_reward_func",
    "length_reward_func",
    "repetition",
    "same_answer",
    "soft_format_reward_func",
    "strict_format_reward_func",
    "topic_relevance_reward_func",
    "xmlcount_reward_func",
]
