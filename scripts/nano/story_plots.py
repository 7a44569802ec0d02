# ruff: noqa: E501 -- a template is one line, so that it reads as the text it becomes
"""Plots of the little stories: one paragraph a plot, one line a beat, `|` between variants, `?` for optional
beats.

Slots in braces are filled from `stories.cast`. A plot never says how a story opens or ends: those parts
come from shared lists, so that the number of different stories is the product of all parts.
"""

from __future__ import annotations

_TEXT = """
{Hero} had a {toy}. {He} took it everywhere. | {Hero} loved {his} {toy} more than anything else. | For {his} birthday, {hero} got a {toy} from {his} {grown}.
One day, the {toy} was gone. {Hero} looked under the bed, but it was not there. | But one {day}, {hero} could not find the {toy}. {He} looked in every room.
"Have you seen my {toy}?" {hero} asked {friend}. "No," said {friend}, "but I will help you look." | {Hero} began to cry. Then {friend} came and said, "Let us look for it together."
They looked near {outdoor} and behind the old tree. | They went to {outdoor} and asked everyone they met. | First they looked in the kitchen. Then they looked in the garden.
At last, {friend} saw something {colour} in the grass. It was the {toy}! | Then {hero} heard a small sound. The {toy} was in the basket by the door all the time!
"Thank you, {friend}!" said {hero}. | {Hero} hugged {friend} and said, "You are a true friend."

One day, {hero} found {treasure} near {outdoor}. | While {he} was walking to {outdoor}, {hero} saw {treasure} on the ground.
"What is this?" {he} said. {He} picked it up and held it to the light. | {He} picked it up with care. It felt warm in {his} hand.
{Hero} showed it to {friend}. "I think it belongs to someone," said {friend}. | "It must be magic!" said {friend} when {hero} showed it to {him}.
They asked the {job}, but the {job} only shook {jobhis} head. "It is not mine," said the {job}. | They went to the {job}, who knew everyone in the village.
? Then an old woman came down the road. She looked very {sad}.
"I have lost {treasure}," said the old woman. "My mother gave it to me when I was small." | "That is mine!" said an old man with a white beard. "I lost it many years ago."
{Hero} wanted to keep it, but {he} gave it back. | {Hero} did not wait a moment. {He} put it in the old hands and smiled.
"You are an honest child," the old one said, and gave {hero} {food} to take home. | "Thank you," came the answer, "you have made me very {happy}."

{Hero} was afraid of the dark. Every night, {he} asked for a light. | When night came, {hero} did not want to go to bed. {He} was afraid of the dark.
"The dark cannot hurt you," said {his} {grown}. But {hero} was still afraid. | "What if there is a monster under my bed?" asked {hero}.
One night, the lamp went out. {Hero} heard a strange sound at the window. | Then one night there was a storm, and all the lights went out.
{Hero} held {his} {toy} tight and looked. It was only {friend}! | {He} took one step, and then another. Behind the curtain there was only a small cat.
"Come outside," said {friend}. "Look up!" The sky was full of stars. | Together they looked out of the window. The moon was big and round, and the snow was bright.
"The dark is beautiful," said {hero}. | "If it were not dark, we could not see the stars," said {hero}.

There was a big race at {outdoor}. Everyone wanted to win. | In {season}, there was a great race in the village, and {hero} wanted to run.
"You are too small to win," said {friend}. | Some of the others laughed. "You are much too slow," they said.
{Hero} said nothing. Every morning {he} ran up the hill and down again. | But {hero} practised every day, in sun and in rain.
On the day of the race, {friend} ran very fast and was soon far ahead. | When the race began, all the others ran past {hero} in a cloud of dust.
But {friend} stopped to rest under a tree and fell asleep. | But the others ran so fast that they were soon tired.
{Hero} went on, step by step, and did not stop. | {Hero} kept going, one foot after the other.
{He} was the first to reach the end. Everyone cheered! | In the end, {hero} did not come first, but {he} finished the race, and everyone clapped.

One morning, {hero} heard a soft cry near {outdoor}. | On the way to {outdoor}, {hero} heard a very small voice.
A little bird had fallen from its nest. | A baby bird was lying in the grass. It could not fly.
"Do not be afraid," said {hero}. "I will help you." | {Hero} looked up. The nest was high in the tree.
{Hero} put the bird in a warm box and gave it some water. | {He} ran to get {friend}, because {friend} was good at climbing.
Day after day, {hero} looked after the bird. It grew bigger and stronger. | {friend} climbed slowly, with the bird in {his} hat, and put it back in the nest.
? The mother bird sang a long and lovely song.
One day, it opened its wings and flew away. {Hero} was a little sad, but also {happy}. | Every morning after that, a bird sat at {hero}'s window and sang.

{Hero} wanted to bake a cake for {friend}. It was {friend}'s birthday. | It was the birthday of {friend}, and {hero} had an idea. "I will make {food}!" {he} said.
{He} took flour, eggs and milk, and mixed them in a big bowl. | {Hero} had never baked before, but {he} was not afraid to try.
Oh no! The bowl fell on the floor. There was flour everywhere. | But {he} took salt and not sugar by mistake. It tasted terrible!
{Hero} wanted to cry. Then {his} {grown} came in and said, "We can do it together." | "Everyone makes mistakes," said {his} {grown}. "Let us start again."
They mixed and stirred, and soon the whole house smelled sweet. | This time {hero} read every line of the recipe twice.
When {friend} came, {he2} saw the table and clapped {his2} hands. "Is this for me?" | {friend} took a bite. "This is the best cake in the world!" {he2} said.

{Hero} and {friend} both wanted the same {toy}. | There was only one {toy}, but there were two friends.
"It is mine!" said {hero}. "No, it is mine!" said {friend}. They pulled and pulled. | {Hero} pulled on one side and {friend} pulled on the other.
Then the {toy} broke. They both looked at it and were very quiet. | Crack! The {toy} fell down and broke in two.
"I am sorry," said {hero}. "I am sorry too," said {friend}. | {friend} began to cry. {Hero} felt bad.
They took it to the {job}. "I can mend it," said the {job}, "but you must take turns." | "We can mend it," said {hero}. They worked all afternoon with glue and string.
Now {hero} played with it in the morning, and {friend} played with it in the afternoon. | From then on, they played with it together.

It had not rained for many weeks. The well was dry and the flowers hung their heads. | That {season} was very dry. The river was only a thin line of water.
"What can we do?" asked {friend}. Everyone was {sad}. | The animals came together under the big tree to talk.
{Hero} remembered a story about a spring behind the hill. | "My {grown} told me about a hidden lake," said {hero}.
{He} took a bucket and walked for a whole day. | {Hero} and {friend} set out before the sun came up.
? On the way, they helped an old turtle cross the road. "Go left at the white stone," said the turtle.
Behind a white stone, {hero} heard water. It was clear and cold. | At last they saw something blue between the rocks. It was water!
They dug a little channel, and the water ran down to the village. | {Hero} ran home to tell everyone, and they all came with buckets.
The flowers lifted their heads, and everyone danced. | That evening, nobody was thirsty any more.

{Hero} was new at school. {He} did not know anyone. | It was {hero}'s first day at school, and {he} was very {sad}.
At lunch, {hero} sat alone under a tree. | All the other children were playing, but {hero} stood by the wall.
A child with a {toy} came and sat down too. "My name is {friend}," said the child. | Then {friend} came over. "Do you want to play with us?"
"I am {hero}," said {hero} in a small voice. | {Hero} nodded. {He} could not say a word, but {he} smiled.
"I was new last year," said {friend}. "I was {sad} too." | "We need one more for our game," said {friend}.
They played until the bell rang. | {friend} showed {hero} the library, the garden and the best place to hide.
When {hero} came home, {his} {grown} asked, "How was school?" "I have a friend," said {hero}. | "Can I go to school tomorrow too?" {hero} asked that evening.

A {job} lived next door to {hero}. The {job} was old and worked all alone. | In the village there was an old {job} who never smiled.
One day, the {job} was ill and could not work. | Every day, {hero} watched the {job} through the window.
"Who will do the work now?" people asked. | One {day}, {hero} knocked at the door and asked, "May I help you?"
"I can help," said {hero}. "You are too small," said the {job}, "but you may try." | The {job} looked at {hero} for a long time. Then {job2} said, "Come in."
{Hero} swept the floor, carried wood and learned the names of all the tools. | {Hero} made many mistakes on the first day, and fewer on the second.
? "You have good hands," said the {job} one evening.
Soon the shop was full of people again. | By {season2}, {hero} could do almost everything alone.
The {job} smiled for the first time in years. | "One day this shop will be yours," said the {job}.

{Hero} told a lie. {He} said that a wolf was in {outdoor}. | {Hero} was bored, so {he} cried, "Help! A wolf!"
Everyone came running, but there was no wolf. {Hero} laughed. | The people dropped everything and ran to help. There was nothing there.
The next day, {hero} did it again, and again they came. | "That was not funny," said {his} {grown}. But {hero} did it once more.
Then a real wolf came out of the trees. "Help! Help!" cried {hero}. | On {day}, {hero} saw two yellow eyes behind a bush. This time it was true.
Nobody came. "It is only a joke," they said. | People heard {him}, but they only shook their heads.
Only {friend} came, with a big stick and a loud drum. The wolf ran away. | {Hero} climbed up a tree and had to stay there all night.
"I will never lie again," said {hero}. | "Why did nobody come?" asked {hero}. "Because nobody believes a liar," said {his} {grown}.

One winter day, {hero} found a {animal2} in the snow. It was cold and hungry. | Snow fell all night. In the morning, a {animal2} sat in front of {hero}'s door.
"Come in and get warm," said {hero}. | {Hero} wrapped it in a {colour} blanket and put it near the fire.
{He} gave it {food} and a place to sleep. | The {animal2} ate everything and slept for two days.
When {season2} came, the {animal2} said goodbye and went back to {outdoor}. | "I will never forget you," said the {animal2}, and ran away over the fields.
Months later, {hero} lost the way in the forest. It was getting dark. | That summer, {hero} fell into the river and could not get out.
Suddenly, the {animal2} was there. "Follow me," it said. | Then someone pulled {him} to the shore. It was the {animal2}!
"Now we have helped each other," said the {animal2}. | "You were kind to me," it said, "and now I can be kind to you."

{Hero} looked at the moon every night. "I want to touch it," {he} said. | {Hero} had one big wish: {he} wanted to go to the moon.
{He} climbed on a chair, but the moon was still far away. | First {he} climbed a tree. Then {he} climbed the roof.
"You need a ladder," said {friend}. They took the longest ladder in the village. | "You need a rocket," said {friend}. So they built one from boxes and paint.
It was not long enough. The moon only smiled. | They counted: three, two, one! But the rocket did not move.
Then {hero} saw the moon in the pond. It was so near! | Then it rained, and there was a puddle in front of the house. The moon was in it.
{He} touched the water, and the moon danced. | {Hero} put one finger in the water and touched the moon.
"I did it!" cried {hero}. | "It feels cold and wet," {he} said, and {friend} laughed.

{Hero} had a small garden behind the house. {He} planted a seed. | One day in spring, {his} {grown} gave {hero} a little brown seed.
Every day {he} gave it water, but nothing happened. | "When will it grow?" asked {hero}. "You must wait," said {his} {grown}.
? {Hero} sang to it, and read it a story, and told it to hurry.
"It is a bad seed," said {friend}. "Throw it away." | One week went by, and then two. {Hero} almost gave up.
But {hero} waited. Then, one morning, there was a tiny green leaf. | Then, after a night of rain, something green came out of the ground.
It grew and grew, until it was taller than {hero}. | In {season2}, it had a big yellow flower like a sun.
{Hero} gave one flower to {friend} and one to {his} {grown}. | Inside the flower there were a hundred seeds. {Hero} gave them to all the children in the street.

{Hero} and {friend} went to {outdoor} to have a picnic. | On {day}, {hero} and {friend} packed a basket with {food} and set out.
They put a {colour} blanket on the grass and sat down. | They found a nice place under a big tree.
But a long line of ants came and carried the food away. | Then dark clouds came, and it began to rain.
"Hey! That is our lunch!" said {hero}. | "Oh no," said {friend}. "Everything is wet."
"They must be hungry too," said {friend}. | {Hero} looked around. "There is a cave over there!" {he} said.
They laughed and gave the ants the last piece. | In the cave it was dry and warm, and they ate and told stories.

One night, {hero} heard a noise in the kitchen. Clack, clack, clack. | In the middle of the night, something went bump in the kitchen.
{He} took a lamp and walked down the stairs very slowly. | "Who is there?" whispered {hero}. Nobody answered.
{He} opened the door. Two small eyes looked at {him}. | There was flour on the table, and little white feet had walked across the floor.
It was a {animal2} with a cookie in its mouth. | Behind the bread sat a {animal2} and looked very sorry.
"I was so hungry," it said. | "Please do not be angry," said the {animal2}.
"You only have to ask," said {hero}, and {he} made {food} for both of them. | {Hero} laughed and put a plate on the floor. "Next time, knock on the door," {he} said.

{Hero} wanted to learn to swim, but {he} was afraid of deep water. | All the others could swim, but {hero} always stayed on the shore.
"I will hold you," said {friend}. | "You do not have to swim," said {friend}. "Just put your feet in."
First, {hero} put one foot in the water. It was cold! | On the first day, {he} stood in the water up to {his} knees.
On the second day, {hero} put {his} face in the water. | Then {he} learned to float on {his} back and look at the clouds.
? "Kick your feet!" called {friend}. "Like a frog!"
At the end of the week, {friend} let go, and {hero} did not even notice. | Then, on {day}, {he} swam three strokes all alone.
"I am swimming!" {he} shouted. | {Hero} came out of the water and shook {himself}. "Again!" {he} said.

The king of the land had a problem. He could not laugh. | There was a princess who never smiled.
"Whoever makes me laugh may choose a gift," said the king. | The king said, "Whoever makes her smile shall have half a bag of gold."
Many people came. They danced and sang and fell over, but nothing helped. | Clowns came, and singers, and a man with a dancing bear.
Then {hero} came to the castle with {his} {toy}. | {Hero} was only {a_kind}, but {he} wanted to try.
{He} did not know any jokes, so {he} just asked, "Are you lonely?" | On the way in, {hero} slipped, and a pie landed on {his} own head.
Nobody had ever asked that before. They talked for a long time. | It was very quiet. Then there was a small sound, like a hiccup. It was a laugh!
At the end there was a smile, and then a big laugh. | "Do it again!" came the cry, and everybody in the hall laughed.
"What do you want as your gift?" "A friend," said {hero}. | {Hero} gave the gold to the poor and kept only one coin.

{Hero} could not sleep. {He} turned left, and {he} turned right. | It was late, but {hero} was wide awake.
{He} counted sheep. One, two, three, four, five. It did not help. | {He} drank a cup of milk and went back to bed. It did not help.
"Why are you awake?" asked {his} {grown}. "My head is full of thoughts," said {hero}. | {Hero} looked out of the window. {friend} was awake too!
"Then give me one of them," said {his} {grown}. | "Tell me what you see," said {his} {grown}.
{Hero} told about {outdoor}, and about {friend}, and about the {toy}. | So {hero} told a story about a {animal2} who wanted to fly.
With every word {his} eyes grew smaller. | The story grew slower and slower.
Soon the room was quiet. | Before it came to the end, {hero} was asleep.

A strong wind blew all day. It took {hero}'s {clothing} and carried it away. | Whoosh! The wind took the {clothing} of {hero} and blew it over the roof.
"Stop!" cried {hero}, and ran after it. | {Hero} ran down the street, over the bridge and up the hill.
The {clothing} landed on a cow. The cow walked on. | The {clothing} danced over the fields like a {colour} bird.
{Hero} called {friend}, and they ran together. | "I will catch it!" said {friend}, but the wind was faster.
At last it hung in the top of a tree. {friend} climbed up and got it. | At last, the {job} caught it with a long stick.
"Next time I will hold it tight," said {hero}. | {Hero} put it on and tied it with a string.

{Hero} found a door in an old tree. It was very small and {colour}. | Behind the house of {his} {grown}, {hero} found a tiny {colour} door.
{He} knocked three times. The door opened. | The key was under a stone. It fit.
Inside lived a {animal2} with round glasses. "You are late," it said. "Come in for tea." | Inside there was a long stair that went down, and warm light came from below.
They drank tea from cups as small as nuts. | There was a room full of clocks, and every clock showed another time.
"What do you do here?" asked {hero}. "I paint the leaves in autumn," was the answer. | "We make the dreams here," said a {animal2} in a blue coat. "Which one do you want?"
When {hero} went home, {he} had a little paint on {his} nose. | When {hero} came back, only one minute had passed.
The next day the door was gone, but a {colour} leaf lay there. | {He} never told anyone, but sometimes {he} left a cookie by the tree.

It was the day before the great feast. Everyone had something to do. | The village wanted to have a feast, and everybody brought something.
The {job} brought bread, and {friend} brought {food}. | {friend} brought flowers, and the {job} brought a big pot.
{Hero} had nothing to bring. {He} was {sad}. | "I have nothing," thought {hero}. "I am too poor."
"I can bring a song," thought {hero}. | "Bring what you can do," said {his} {grown}.
That evening {hero} stood up and sang. {His} voice shook at first. | So {hero} brought a stone, put it in the pot and said, "This will be stone soup." Everyone added something.
Then it grew clear and strong, and people put down their spoons to listen. | It was the best soup they had ever eaten.
"That was the best gift of all," said {friend}. | "You brought us together," said {friend}.

{Hero} lived near a lighthouse. The keeper was old, and {his} {grown} helped him. | The lighthouse stood on a rock in the sea. {Hero} lived there with {his} {grown}.
One night there was a great storm, and the light went out. | One evening, {his} {grown} did not come back from the town. The fog came in from the sea.
A ship was coming. It could not see the rocks. | Far away, {hero} heard the horn of a ship.
{Hero} ran up all the stairs, one hundred and one of them. | {He} knew what to do. {He} had seen it many times.
{He} lit the big lamp with shaking hands. | First the oil, then the match, then the glass.
The light went out over the sea, round and round. | A long yellow arm of light reached over the water.
The ship turned just in time. | The ship answered with three long calls.
In the morning the captain came and shook {hero}'s hand. | "Who lit the lamp?" asked the sailors. Nobody believed that it was {hero}.

{Hero} drew a picture of a {animal2}. It was so good that it moved. | {Hero} had a magic pencil. Everything that {he} drew became real.
The {animal2} jumped out of the paper and ran around the room. | First {he} drew an apple, and {he} ate it.
"Come back!" cried {hero}. But it ran out of the door. | Then {he} drew a {animal2}, and it licked {his} hand.
It ate the flowers and chased the hens, and everyone was angry. | But {friend} said, "Draw us a dragon!" And {hero} did.
{Hero} thought hard. Then {he} drew a big bowl of {food}. | The dragon was big, and it sneezed, and the curtain caught fire.
The {animal2} smelled it and came back at once. | Quickly, {hero} drew a rain cloud. It rained in the room until the fire was out.
"Stay on the paper," said {hero}, "and I will draw you a friend." | After that, {hero} only drew small things.

{Hero} did not want to share {his} {food}. {He} had a whole basket of it. | {Hero} had a big basket of {food}, and {he} was very hungry.
A hungry {animal2} came by. "May I have a little?" it asked. "No," said {hero}. | An old woman asked for a bite. "There is not enough," said {hero}.
Then a bird came, and then {friend}, and {hero} said no to all of them. | {He} walked on and hid the basket behind {his} back.
{He} ate and ate until {his} stomach hurt. | But the basket was heavy, and the bottom broke. Everything fell into the mud.
"Oh, I feel so ill," said {hero}. {friend} brought {him} some tea. | Now {hero} had nothing. {He} sat on a stone and was {sad}.
"Why are you kind to me? I was not kind to you," said {hero}. | Then {friend} came and broke {his2} own bread in two. "Here," {he2} said.
"Because you need it," said {friend}. | {Hero} never forgot how good that bread tasted.

On the way home, {hero} lost the path. All the trees looked the same. | {Hero} went too far into the forest, and soon {he} did not know the way back.
"Do not panic," {he} told {himself}. | It was getting late, and the shadows were long.
{He} sat down and listened. Far away there was the sound of water. | {Hero} remembered what {his} {grown} had said: "Follow the river, and it will bring you home."
{He} followed the stream, over stones and under branches. | {He} walked and walked, and sang to keep up {his} courage.
? An owl flew ahead from tree to tree, as if it wanted to show the way.
Then there was a light between the trees. It was a lamp in a window. | Then {he} heard someone call {his} name. It was {friend} with a lantern!
"We were so worried," said {his} {grown}. | "I knew you would find the way," said {friend}.

{Hero} had a pet {animal2} named {pet}. They did everything together. | {Hero}'s best friend was a {animal2} called {pet}.
One day, {pet} did not eat. {pet} only lay in the corner. | One morning, {pet} was not in the basket.
{Hero} was {sad}. "What is wrong, {pet}?" {he} asked. | {Hero} called and called: "{pet}! {pet}!"
They went to the doctor. The doctor looked into its mouth and at its feet. | {friend} and {hero} put up notes on every tree.
"There is a thorn in the foot," said the doctor, and took it out. | On the third day, someone knocked. It was the {job}. "Is this your {animal2}?"
The next day {pet} was running around again. | {pet} was thin and dirty, but alive.
{Hero} gave {pet} {food} and a long hug. | {Hero} laughed and cried at the same time.

"I am bored," said {hero}. It was raining, and there was nothing to do. | It rained for three days. {Hero} and {friend} had to stay inside.
{friend} found a big box. "It is not a box," said {friend}. "It is a ship!" | "Let us make a game," said {friend}.
They sailed over the carpet to an island made of cushions. | They put two chairs together and a blanket on top. Now they had a castle.
On the island lived a {animal2} that was made of socks. | "I am the king," said {hero}. "And I am the dragon," said {friend}.
A storm came, and the ship almost sank. | The dragon wanted the cookies. The king did not want to give them away.
"Hold on!" cried {hero}. | In the end, they made peace and ate the cookies together.
When the sun came out, they did not even see it. | "It has stopped raining," said {his} {grown}. "Not now!" said {hero}.

The old clock in the village stopped. Nobody knew what time it was. | One morning, the big clock did not ring.
The {job} opened the shop too late, and the children came to school at noon. | People ate breakfast in the evening and went to bed in the morning.
"I will look inside," said {hero}, because {he} was small enough. | "Someone has to climb up," said {friend}. Everyone looked at {hero}.
{He} climbed up the dark stairs with a lantern. | Inside there were big wheels and small wheels, and none of them moved.
Between two wheels there was a nest, and in the nest were four eggs. | A {animal2} had fallen asleep between the wheels.
"We must wait until they can fly," said {hero}. | {Hero} carried it down very gently.
So the village waited, and for three weeks nobody was late. | Tick, tock, tick, tock. The clock was working again!

{Hero} wanted to be big. "I want to be as big as {my} {grown}," {he} said. | "Why am I so small?" {hero} asked.
{He} stood on a box. {He} wore big shoes. {He} was still small. | Everything was too high: the shelf, the door and the apples on the tree.
One day, a ring fell between two stones. Nobody could reach it. | One day, {friend} was locked in a room, and only a small window was open.
The big people tried with a stick, and with a hook. Nothing worked. | The {job} was too big for the window, and so was everyone else.
"Let me try," said {hero}. {His} hand was small enough. | {Hero} climbed through the window and opened the door.
"How good that you are small!" they all said. | "Being small is not so bad," said {hero}.

{Hero} made a boat from a nutshell and a leaf. | {Hero} and {friend} built a raft from old wood and rope.
{He} put it in the river and wrote a letter for it to carry. | They pushed it into the river and jumped on.
The letter said, "Whoever finds this, please write back." | The river was slow at first, and ducks swam beside them.
The boat sailed under the bridge, past the mill and out of sight. | Then it went faster and faster. "I can hear a waterfall!" cried {friend}.
{Hero} waited for days and weeks. | {Hero} saw a branch and held it. They stopped just in time.
Then a letter came. It was from a child on the other side of the sea. | They climbed onto the shore, wet and {happy}.
They wrote to each other for many years. | They walked home slowly, and their shoes went squish, squish.

Every morning the {animal2} next door made a lot of noise. | Next to {hero} lived a {animal2} who played the drum all day.
"Can you be quiet, please?" asked {hero}. But it did not hear. | {Hero} could not read, and {he} could not sleep.
{Hero} became angry and shouted. Then they did not talk for a week. | {He} put cotton in {his} ears. It did not help.
It was quiet now, but {hero} did not like it. It was too quiet. | Then one day there was no sound at all. {Hero} began to worry.
{He} took {food} and knocked on the door. | The {animal2} was ill in bed. {Hero} made tea and {food}.
"I miss your music," said {hero}. | "Will you teach me to play?" asked {hero}.
Soon they played together, and the whole street danced. | Now there were two drums, and {friend} bought cotton.

A new road was to go through {outdoor}. The old tree had to be cut down. | A man with a saw came to cut the old oak tree.
"But the birds live there!" said {hero}. | {Hero} stood in front of the tree and would not move.
{He} went from house to house and told everyone about it. | "This tree is older than your grandfather," {he} said.
{friend} painted a big sign, and the {job} brought a bench. | One after the other, the people came and stood beside {hero}.
They all sat around the tree, day and night. | They held hands and made a ring around it.
At last the mayor came. "The road can go around it," she said. | The man put down his saw. "I used to climb this tree when I was a boy," he said.
The tree still stands there today. | In autumn, everyone got a bag of leaves as a thank you.

{Hero} saw a falling star. "Make a wish," said {friend}. | One night, a star fell into the garden of {hero}.
{Hero} closed {his} eyes and wished. {He} did not say what it was. | It was small and cold, and its light was weak.
The next day, nothing had changed. And the day after that, nothing had changed. | "I want to go home," said the star.
"Did you wish for a {toy}?" asked {friend}. "No," said {hero}. | {Hero} and {friend} thought about how to get it back into the sky.
"Did you wish for gold?" "No." | They tried a kite, but the string was too short. They asked an eagle.
Then {hero}'s {grown} came home after a long time at sea. | The eagle took it carefully and flew up and up, until they could not see it any more.
That was the wish. | That night, one star winked at {hero}.

{Hero} wanted to cross the river, but the bridge was broken. | The bridge was old, and one day it fell into the river.
On the other side lived {friend}. | Now nobody could go to {outdoor}, and nobody could go to school.
"We can shout," called {friend}. So they shouted, but the river was loud. | The people on one side said, "The others should mend it." The others said the same.
{Hero} began to carry stones, one by one. | "Then I will begin," said {hero}, and {he} carried the first board.
On the other side, {friend} began to carry stones too. | The {job} saw it and was ashamed, and came with a hammer.
Every day the two lines of stones came closer. | Soon both sides were working, and they met in the middle.
One evening they stood in the middle and shook hands. | The new bridge was stronger than the old one.

The {animal2} said, "I am the strongest in {outdoor}." It laughed at everyone. | A big {animal2} would not let anyone drink from the pond.
{Hero} was small and did not want to fight. | "This is my water," it said.
"Let us have a contest," said {hero}. "Who can carry water in a basket?" | {Hero} said, "I know someone who is stronger than you. He lives in the water."
The big one tried. All the water ran out. | The big one looked into the pond and saw an angry face.
{Hero} put leaves and clay in the basket, and it held the water. | It showed its teeth. The face in the water showed its teeth too.
"Being clever is better than being strong," said {friend}. | It jumped at the face and fell into the cold water with a big splash.
The big one was ashamed and said sorry. | Everyone laughed, and from then on they all drank together.

{Hero} went to the market with three coins. | {His} {grown} gave {hero} three coins. "Buy bread, and come straight home."
{He} wanted to buy bread for {his} {grown}. | On the way, {he} met a beggar with no shoes. {Hero} gave him one coin.
But there was a man who sold a {toy}. It cost three coins. | Then {he} saw a boy who had lost his money and cried. {Hero} gave him one coin.
{Hero} looked at the {toy} for a long time. Then {he} bought the bread. | Now there was only one coin left, and the bread cost three.
"You made a good choice," said the {job}, who had seen it all. | The {job} had seen everything. "For you, bread costs one coin today," said the {job}.
On {hero}'s birthday, there was a box on the table. In it was the {toy}. | {Hero} ran home with the warm bread under {his} arm.

{Hero} was always in a hurry. {He} ran to school, and {he} ran home. | {Hero} was never on time. {He} always stopped to look at things.
{He} never saw the flowers or the birds. | {He} looked at snails, at clouds, and at his own shadow.
One day {he} ran so fast that {he} fell and hurt {his} knee. | "Hurry up!" everyone said. "You will be late!"
Now {he} had to walk slowly, with a stick. | One day the teacher asked, "Who knows how a spider makes its web?"
On the way {he} saw a snail, a spider's web and a blue egg. | Nobody knew. Only {hero} put up a hand.
"Was this always here?" asked {hero}. "Always," said {friend}. | {Hero} told them all about it, and it was so quiet that you could hear the clock.
When {his} knee was well again, {hero} still walked. | "Tomorrow we will all be late together," said the teacher, "and you will show us."

A circus came to town. {Hero} wanted to see it, but {he} had no money. | One day, {colour} tents stood in the meadow. The circus was there!
{He} looked through a hole in the tent. | {Hero} and {friend} went there every day to watch.
Inside, a {animal2} was walking on a rope. | A small {animal2} sat in a cage and looked at the sky.
Suddenly the rope broke! The {animal2} hung by one foot. | "It wants to go home," said {hero}.
{Hero} ran in with a blanket, and {friend} held the other side. | {Hero} talked to the director. "It does not dance any more," said {hero}. "It is too sad."
The {animal2} fell, and they caught it. | The director looked at the {animal2} for a long time. Then he opened the cage.
The director gave them tickets for the front row. | The {animal2} ran to {outdoor} and turned around once.

{Hero} got a letter. It had no name on it, only a {colour} stamp. | One {day}, there was a letter in front of the door. "For {hero}," it said.
It said, "Come to {outdoor} when the sun goes down." | It said, "Look under the third stone."
{Hero} asked {friend} to come along. | Under the third stone was another letter: "Now go to the big tree."
They waited behind a bush. It was very quiet. | Near the big tree hung a third letter: "You are almost there. Go home."
Then there were lights, one, two, ten, a hundred! | {Hero} ran home and opened the door.
"Surprise!" cried all the friends. | "Happy birthday!" cried everyone.
{Hero} had forgotten that it was {his} own birthday. | On the table stood {food}, and {friend} was holding a {toy}.

{Hero} and {friend} had a fight. It was about a very small thing. | {Hero} said something unkind to {friend}, and {friend} went away.
They did not talk to each other for days. | At first {hero} thought, "I do not need anyone."
{Hero} played alone. It was no fun. | But it is hard to play ball alone, and it is hard to laugh alone.
{friend} sat at home and looked out of the window. | {Hero} asked {his} {grown}, "How do you say sorry?" "With your mouth," was the answer, "and with your eyes."
{Hero} made a paper plane and wrote "Sorry" on it. | {Hero} took {his} best {toy} and went to the house of {friend}.
It flew over the fence. After a while it came back. On it was written: "Me too." | {friend} opened the door before {hero} could knock. "I was just going to you," {he2} said.

The snowman in the garden was cold and white. {Hero} had made it with {friend}. | In winter, {hero} and {friend} made a big snowman.
They gave it a carrot for a nose and a {colour} {clothing}. | It had eyes of coal and wore the old {clothing} of {his} {grown}.
At night, {hero} looked out. The snowman was dancing! | "Do you think it is lonely?" asked {hero}. So they made another one.
"Thank you for the {clothing}," said the snowman. "Now I am not cold." | Every day they said good morning to the two of them.
They danced until the stars grew pale. | When the sun grew warm, the two became smaller and smaller.
"I must go when spring comes," said the snowman. "But I will come back." | One day there were only two carrots and a puddle.
Next winter, {hero} waited for the first snow. | "They have gone to the sea," said {his} {grown}, "and next winter they will come back as snow."
"""


def plots() -> list[list[tuple[bool, list[str]]]]:
    """All plots as lists of beats: (optional, variants)."""
    result = []
    for block in _TEXT.strip().split("\n\n"):
        beats = []
        for line in block.splitlines():
            optional = line.startswith("? ")
            beats.append((optional, [v.strip() for v in line.removeprefix("? ").split(" | ")]))
        result.append(beats)
    return result
